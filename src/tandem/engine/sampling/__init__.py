"""Chooses tokens from logits: biases and penalties, the likely set, the draw, and the probabilities to report."""
