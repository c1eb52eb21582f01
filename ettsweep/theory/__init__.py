"""check-scaling: train small networks of several widths and compare them with what theory implies for a strategy.

scaling_check (what to train, and the check) calls
    measure and layers (torch) | expectations (theory) | judge (a table of rows, by exponents)
-> check_tables, coordinate_check (output). Code for one architecture is in a module *_probe, which the registry of
models names.
"""
