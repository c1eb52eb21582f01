"""`ettsweep data text`: from files to a corpus."""
