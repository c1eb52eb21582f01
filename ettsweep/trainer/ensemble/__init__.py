"""Many runs of one shape that train at once in one process, and are each what they would be alone."""
