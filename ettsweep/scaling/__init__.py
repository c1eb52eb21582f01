"""Scaling strategies as plain float functions: groups, init stds, relative factors, the map of (lr, wd)."""
