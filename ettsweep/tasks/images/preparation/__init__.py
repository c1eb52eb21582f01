"""`ettsweep data images`: from a set of images to smaller copies of them."""
