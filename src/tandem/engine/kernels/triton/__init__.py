"""The operations of the network as Triton kernels, for GPUs. `kernels/reference.py` says what each must compute.

Importing this package is safe everywhere; importing a module of it needs `triton` and raises `ConfigError` without.
`unavailable_reason` asks beforehand. With TRITON_INTERPRET=1 set before the first import, the kernels run in Triton's
interpreter on CPU tensors: slow, and how their correctness is tested.
"""

from __future__ import annotations

import importlib.util
import os


def unavailable_reason() -> str | None:
    """Why the kernels can't run here, as the end of a sentence; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    import torch

    return None if torch.cuda.is_available() else "torch sees no GPU"
