"""The worker: turns run folders into results. Started with `python -m ettsweep.worker`; it knows nothing of grids."""
