"""Scaling strategies as plain floats: init stds and learning-rate factors by group, and the map of (lr, wd)."""
