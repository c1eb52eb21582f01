"""The trainable that ships: Transformers in PyTorch, with their models, tasks, training loop and ensembles."""
