"""Training of one run: step, loop, checkpoints, loggers, several devices. It knows no sweeps or schedulers."""
