"""What works here: the machine, a cluster, data sets, and how much fits into memory."""
