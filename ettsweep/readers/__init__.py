"""Readers: find metrics in files and output of trainers that do not know ettsweep."""
