"""check-scaling: real networks of several widths, measured and held to what theory implies for a strategy.

plan (what is asked) -> outcome (the way through), which calls
    measure, of a probe (torch) | expectations (theory) | judgement, by powers | findings (words)
-> tables, figure (output). What is particular to an architecture: vit, encdec, named in its entry of models.
"""
