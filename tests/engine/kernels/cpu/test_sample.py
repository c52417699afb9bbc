"""Choosing tokens on a decoder's threads; what is chosen is tested in tests/engine/sampling/test_native.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tandem.core.request import Rank, Request
from tandem.core.sampling_params import SamplingParams
from tandem.engine.kernels.cpu.native import Kernels
from tandem.engine.sampling.native import NativeSampler
from tandem.engine.sampling.sampler import Row


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_chooses_the_same(llama: Any, kernels: Kernels, threads: int) -> None:
    logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(0))
    argmax = logits.argmax(-1).tolist()
    rows = [
        Row(Request("r", [0], SamplingParams(seed=i, top_p=1.0 - i % 3 * 0.2), Rank(0, 0.0, 0)), 0, i)
        for i in range(40)
    ]
    with_threads = NativeSampler(llama.decoder(kernels, threads=threads))
    together = with_threads.sample(logits, rows, argmax).token_ids
    assert together == [with_threads.sample(logits, [row], argmax).token_ids[0] for row in rows]
