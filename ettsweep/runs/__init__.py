"""Run folders: where planner and worker meet. Their files, their attempts, and the state derived from them."""
