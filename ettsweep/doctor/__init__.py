"""Checks of the machine, a cluster, data sets, memory, and a user's script."""
