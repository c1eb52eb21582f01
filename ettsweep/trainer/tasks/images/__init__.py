"""Image data sets: finding, reading and augmenting images, and the classification tasks on them."""
