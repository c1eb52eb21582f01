"""Tasks: data, loss and score of what a model is trained on. `registry` needs no torch."""
