"""The planner's half: grid files, the log2 lattice, what is on disk, what to run next, and the verdict."""
