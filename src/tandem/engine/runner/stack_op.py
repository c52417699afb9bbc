"""`tandem::decoder`: the whole network of a CPU engine as one operator of the compiled graph.

The lowered graph consists of this operator over one packed weight image. Whoever runs the graph opens a session first:
a native decoder over the same image, which owns the KV pool and writes it inside the operator only. So the graph never
sees the pool and can't copy it.

Why one operator: entering the threads and leaving the interpreter between products cost more than the products at small
batches; docs/compiler.md has the candidates and what each took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


class Count(IntEnum):
    """Places in the operator's `counts`: what of the padded arrays is real, and whether logits are wanted."""

    SEQUENCES = 0
    SAMPLES = 1
    LOGITS = 2


NUM_COUNTS = len(Count)


class NativeStep(Protocol):
    """What runs behind the operator; kernels/cpu/decoder.py says what the arguments are."""

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        query_start: Tensor,
        context_len: Tensor,
        block_tables: Tensors,
        slot_mapping: Tensors,
        sample_rows: Tensor,
        *,
        argmax_out: Tensor,
        logits_out: Tensor | None = None,
    ) -> None: ...


_sessions: dict[int, NativeStep] = {}
"""Address of a weight image -> who runs it. Steps of one process run one after another, so one is enough."""


@contextmanager
def session(weights: Tensor, decoder: NativeStep) -> Iterator[None]:
    """While it is open, the operator over `weights` runs `decoder`, which the caller owns."""
    key = weights.data_ptr()
    before = _sessions.get(key)
    _sessions[key] = decoder
    try:
        yield
    finally:
        if before is None:
            del _sessions[key]
        else:
            _sessions[key] = before


def _decoder(
    weights: Tensor,
    counts: Tensor,
    token_ids: Tensor,
    positions: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    block_tables: Tensors,
    slot_mapping: Tensors,
    sample_rows: Tensor,
    logits: Tensor,
) -> Tensor:
    sequences, samples, wants_logits = counts.tolist()
    chosen = torch.empty_like(sample_rows)
    _sessions[weights.data_ptr()].step(
        token_ids,
        positions,
        query_start[: sequences + 1],
        context_len[:sequences],
        [table[:sequences] for table in block_tables],
        slot_mapping,
        sample_rows[:samples],
        argmax_out=chosen,
        logits_out=logits[:samples] if wants_logits else None,
    )
    return chosen


def _fake_decoder(
    weights: Tensor,
    counts: Tensor,
    token_ids: Tensor,
    positions: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    block_tables: Tensors,
    slot_mapping: Tensors,
    sample_rows: Tensor,
    logits: Tensor,
) -> Tensor:
    return torch.empty_like(sample_rows)


_library = torch.library.Library("tandem", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "decoder(Tensor weights, Tensor counts, Tensor token_ids, Tensor positions, Tensor query_start, "
    "Tensor context_len, Tensor[] block_tables, Tensor[] slot_mapping, Tensor sample_rows, Tensor(a!) logits) -> Tensor"
)
_library.impl("decoder", _decoder, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("tandem::decoder", _fake_decoder, lib=_library)
