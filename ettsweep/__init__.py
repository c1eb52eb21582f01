"""ettsweep finds, and proves, the best learning rate and weight decay of a Transformer."""

__version__ = "0.1.0"
