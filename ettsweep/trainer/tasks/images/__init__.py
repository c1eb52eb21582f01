"""Sets of images: where they lie, how they are read and augmented, and the task made of them."""
