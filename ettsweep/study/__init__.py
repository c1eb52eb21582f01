"""The planner's half: grid files, the log2 lattice, runs on disk, next runs, and the verdict."""
