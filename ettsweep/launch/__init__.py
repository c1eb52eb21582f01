"""Launching: profiles, submission through submitit, and what becomes of it."""
