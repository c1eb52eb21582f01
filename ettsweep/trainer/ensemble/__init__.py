"""Ensembles: runs of one shape that train in one process, each with the results of a run that trains alone."""
