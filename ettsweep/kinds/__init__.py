"""What runs train, a module for each kind: schema of its recipe, what planner and views know of it, its checks."""
