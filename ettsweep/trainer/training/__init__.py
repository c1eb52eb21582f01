"""Training of one run: step, loop, checkpoints, loggers, several devices. It knows neither sweeps nor schedulers."""
