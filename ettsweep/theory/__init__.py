"""check-scaling: train small networks of several widths and compare them with what theory implies for a strategy.

check_plan (what to train) -> scaling_check (runs the check), which calls
    measure and layers (torch) | expectations (theory) | judge, by exponents | judgement_text (findings in words)
-> check_tables, coordinate_check (output). Code for one architecture is in a module *_probe, which the registry of
models names.
"""
