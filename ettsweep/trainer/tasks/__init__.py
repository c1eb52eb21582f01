"""Tasks: data, loss and metric that a model is trained and judged on. Importing `registry` does not import torch."""
