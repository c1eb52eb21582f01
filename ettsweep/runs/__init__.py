"""Runs: spec and id, folder, attempts, derived state, spike counts."""
