"""Launching: profiles, the launchers that start workers, and the progress of runs."""
