"""Attention and fused operations: the plain torch reference, native CPU kernels, Triton for GPUs."""
