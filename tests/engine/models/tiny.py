"""Tiny random models of every family, made with transformers, and our way of running them step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tandem.core.request import Rank, Request
from tandem.core.sampling_params import SamplingParams
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kvcache.layer_groups import group_layers
from tandem.engine.kvcache.manager import KVCacheManager, PrefixHit
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.models.decoder import Decoder
from tandem.engine.runner.batch import BlockTableRows, build_arrays
from tandem.engine.scheduler import ScheduledRequest

VOCAB = 211


def llama_config(**changes: Any) -> Any:
    from transformers import LlamaConfig

    values: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    return LlamaConfig(**values | changes)


def save_random(config: Any, folder: Path, seed: int = 0) -> Any:
    """A random model in float32, saved under `folder`; norms are random too, so that none can be forgotten.

    Eager attention, for transformers' other kinds pass over soft caps.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2 + (0.0 if "gemma" in config.model_type else 1.0))
            elif parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


class PagedModel:
    """A decoder over a small paged cache with shuffled blocks; runs chunks of sequences and returns all logits."""

    def __init__(self, folder: Path, *, block_size: int = 4, num_blocks: int = 128) -> None:
        checkpoint = open_checkpoint(folder)
        spec = checkpoint.spec
        groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
        self.decoder = Decoder(spec, groups, checkpoint, torch.float32)
        self._kv = KVCacheManager(num_blocks, block_size, groups, enable_prefix_caching=False)
        self._kv.pool._empty.sort(key=lambda block: (block * 37) % num_blocks)
        shape = (2, num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
        self._caches = [torch.full(shape, float("nan")) for _ in groups[0].layers]
        self._rows = BlockTableRows(len(groups), 16, num_blocks)
        self._block_size = block_size

    def open(self, tokens: Sequence[int]) -> Request:
        return Request("r", list(tokens), SamplingParams(), Rank(0, 0.0, 0))

    def run(self, chunks: Sequence[tuple[Request, int]]) -> list[Tensor]:
        """Compute the next `count` tokens of each request in one step; float32 logits [count, V] each."""
        scheduled = []
        for request, count in chunks:
            hit = None if request.block_tables else PrefixHit(0, tuple([] for _ in self._kv.groups))
            assert self._kv.allocate_slots(request, count, hit)
            scheduled.append(ScheduledRequest(request, request.num_computed_tokens, count))
        arrays = build_arrays(scheduled, self._rows, self._block_size)
        step = StepTensors(
            torch.from_numpy(arrays.token_ids),
            torch.from_numpy(arrays.positions),
            torch.from_numpy(arrays.query_start),
            torch.from_numpy(arrays.context_len),
            [
                GroupTensors(torch.from_numpy(t), torch.from_numpy(s).long())
                for t, s in zip(arrays.block_tables, arrays.slot_mappings, strict=True)
            ],
            torch.arange(len(arrays.token_ids)),
        )
        logits = self.decoder.logits(self.decoder.forward(step, self._caches))
        for s in scheduled:
            s.request.num_computed_tokens += s.num_tokens
        return list(torch.split(logits, [count for _, count in chunks]))


def chunked(total: int, size: int) -> Iterator[int]:
    for start in range(0, total, size):
        yield min(size, total - start)
