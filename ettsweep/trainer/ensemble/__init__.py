"""Ensembles: runs of one recipe that train in one process by one vectorised call, within rounding of runs alone."""
