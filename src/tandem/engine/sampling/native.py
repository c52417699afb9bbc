"""Chooses tokens with the native kernels: what sampler.py does, many rows in one call and without numpy.

sampler.py and draw.py are the reference: the same uniform gives the same token, but where it falls within rounding of
an edge between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tandem.engine.kernels.cpu.native import SampleArgs
from tandem.engine.sampling.adjust import needs_adjusting
from tandem.engine.sampling.sampler import Row, Samples, reports


class Chooser(Protocol):
    """Who runs the kernels: the decoder, on its threads."""

    def sample(self, arguments: SampleArgs) -> None: ...

    def sample_scratch_bytes(self, vocab_size: int) -> int: ...


class NativeSampler:
    """Keeps its scratch memory from step to step. Not for several threads at once."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._scratch = torch.empty(0, dtype=torch.uint8)

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[Row], argmax: Sequence[int]) -> Samples:
        """One token for each of `rows` from float32 logits [R, V] on the CPU, which are left unchanged.

        argmax: of each row of the logits.
        """
        token_ids = [argmax[row.logit_row] for row in rows]
        others = [i for i, row in enumerate(rows) if not _is_argmax(row)]
        if others:
            chosen = self._choose(logits, [rows[i] for i in others])
            for i, token_id in zip(others, chosen, strict=True):
                token_ids[i] = token_id
        return Samples(token_ids, reports(logits, rows, token_ids))

    def _choose(self, logits: Tensor, rows: Sequence[Row]) -> list[int]:
        assert logits.dtype == torch.float32
        assert logits.is_contiguous()
        vocab = logits.shape[1]
        adjusted = {i: row.adjusted(logits) for i, row in enumerate(rows) if needs_adjusting(row.request)}
        first, row_bytes = logits.data_ptr(), vocab * logits.element_size()
        addresses = [
            adjusted[i].data_ptr() if i in adjusted else first + row.logit_row * row_bytes for i, row in enumerate(rows)
        ]
        params = [row.request.sampling for row in rows]
        arrays: dict[str, npt.NDArray[Any]] = {
            "rows": np.array(addresses, np.uintp),
            "temperature": np.array([0.0 if p.is_greedy else p.temperature for p in params], np.float32),
            "top_k": np.array([max(p.top_k, 0) for p in params], np.int32),
            "top_p": np.array([p.top_p for p in params], np.float64),
            "min_p": np.array([p.min_p for p in params], np.float64),
            "uniform": np.array([0.0 if row.request.sampling.is_greedy else row.uniform() for row in rows], np.float64),
            "chosen": np.empty(len(rows), np.int32),
        }
        pointers = {name: array.ctypes.data for name, array in arrays.items()}
        self._chooser.sample(
            SampleArgs(num_rows=len(rows), vocab=vocab, **pointers, scratch=self._room_for(vocab).data_ptr())
        )
        chosen: list[int] = arrays["chosen"].tolist()
        return chosen

    def _room_for(self, vocab: int) -> Tensor:
        size_bytes = self._chooser.sample_scratch_bytes(vocab)
        if len(self._scratch) < size_bytes:
            self._scratch = torch.empty(size_bytes, dtype=torch.uint8)
        return self._scratch


def _is_argmax(row: Row) -> bool:
    return row.request.sampling.is_greedy and not needs_adjusting(row.request)
