"""ettsweep finds the best learning rate and weight decay of a Transformer, and says how sure that is."""

__version__ = "0.1.0"
