"""Finds a model, opens it, and reads its tensors: catalogue, cache, GGUF, safetensors. Knows no runner."""
