"""Tandem serves large language models at the lowest cost per token.

`from tandem import LLM, SamplingParams` is the offline interface; it is loaded when first used, so that importing
`tandem` costs nothing and needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tandem.engine.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from tandem.engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'tandem' has no attribute {name!r}")
