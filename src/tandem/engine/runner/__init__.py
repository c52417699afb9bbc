"""Builds tensors from a step's plan, runs the model, and chooses tokens."""
