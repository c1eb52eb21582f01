"""Launching: profiles, submission through submitit, and the worker that turns run folders into results."""
