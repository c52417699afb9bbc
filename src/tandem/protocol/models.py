"""The model list of `GET /v1/models`."""

from __future__ import annotations

import msgspec


class Model(msgspec.Struct, kw_only=True):
    """One model a client can name."""

    id: str
    created: int
    """Unix seconds."""
    object: str = "model"
    owned_by: str = "tandem"
    max_model_len: int | None = None
    """Longest prompt plus answer, in tokens; None until the model is loaded. vLLM's extension."""


class ModelList(msgspec.Struct, kw_only=True):
    data: list[Model]
    object: str = "list"


class Version(msgspec.Struct, kw_only=True):
    """`GET /version`."""

    version: str
