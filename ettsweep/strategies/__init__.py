"""Scaling strategies as plain floats: groups, init stds, factors, the map of (lr, wd); kernels that they lead to."""
