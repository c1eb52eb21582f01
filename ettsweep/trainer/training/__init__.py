"""The worker's half: a run folder goes in, a result comes out. It knows nothing of grids."""
