"""`ettsweep watch` at a terminal: what there is to see of a results folder, look after look, and the screen for it."""
