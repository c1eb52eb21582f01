"""Text: how it becomes tokens, how these are stored and read, and the task made of them."""
