"""What tests share: the command line, small runs and texts, a cluster, pictures."""
