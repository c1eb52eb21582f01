"""Benchmarks: `make bench` and its kin. They test nothing; tests of them lie beside them."""
