"""check-scaling: real networks of several widths, measured and held to what theory implies for a strategy."""
