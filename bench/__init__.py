"""Benchmarks: `make bench` and its kin. They test nothing; `tests/benchmarks/` tests them."""
