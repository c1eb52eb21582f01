"""Readers: how metrics are taken from the files and the output of a trainer that knows nothing of ettsweep."""
