"""Launching: profiles, what starts workers by them, and what becomes of runs."""
