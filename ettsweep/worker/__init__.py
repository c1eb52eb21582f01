"""The worker: claims runs of a list and trains them. It ignores grids and studies."""
