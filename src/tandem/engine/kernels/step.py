"""One step as tensors: what every kernel of a layer is given. Built once a step, shared by all layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class GroupTensors:
    """Where the KV of one layer group lies."""

    block_tables: Tensor
    """int32 [S, blocks]: physical blocks of each sequence in order; beyond its length, anything."""
    slot_mapping: Tensor
    """int64 [T]: block · block_size + offset for each token written in this step; -1 for padding."""


@dataclass(slots=True)
class StepTensors:
    """T tokens of S sequences; a sequence's tokens are neighbours."""

    token_ids: Tensor
    """int32 [T]."""
    positions: Tensor
    """int32 [T], from 0 in each sequence."""
    query_start: Tensor
    """int32 [S + 1]: sequence s has tokens query_start[s] up to query_start[s + 1]."""
    context_len: Tensor
    """int32 [S]: tokens of the sequence with KV after this step, its own included."""
    groups: list[GroupTensors]
    logit_rows: Tensor
    """int64 [R]: the tokens whose logits are wanted."""
