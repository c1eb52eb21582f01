"""The worker: claims runs of a list and trains them. It knows nothing of grids or studies."""
