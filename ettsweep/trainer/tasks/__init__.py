"""Tasks: data, loss and score of what a model is trained on. `kinds` needs no torch."""
