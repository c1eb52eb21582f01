"""Kinds of runs, a module each: schema of the recipe, facts for planner and views, checks."""
