"""ettsweep tunes the learning rate and weight decay of any training script, and bounds the remaining gain."""

__version__ = "0.1.0"
