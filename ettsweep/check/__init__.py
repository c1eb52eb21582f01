"""check-scaling: real networks of several widths, measured and held to what theory implies for a strategy.

plan -> outcome -> experiment (torch): for each network, probe and measure
-> expectations (theory) -> judgement, by powers -> findings (words)   -> tables, figure
"""
