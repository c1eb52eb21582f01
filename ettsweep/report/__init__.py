"""Reports on sweeps: tables, figures, and one HTML page."""
