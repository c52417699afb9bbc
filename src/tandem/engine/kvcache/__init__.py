"""Bookkeeping of the paged KV cache: which block holds which tokens of which request. No tensors here.

The planner runs this very code against predicted step times, so nothing below imports torch or sockets.
"""
