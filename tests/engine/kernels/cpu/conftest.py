"""A small paged engine around CpuDecoder, and tiny random models of every family beside transformers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import VARIANTS, Kernels, load_kernels, open_library
from tandem.engine.models.spec import ModelSpec, RopeScaling

VOCAB = 150


@dataclass
class Sequence:
    """A sequence's tokens that have been computed, and its block tables by group."""

    length: int
    tables: list[list[int]]


class Paged:
    """Gives out blocks at random and runs steps of a decoder over them."""

    def __init__(self, decoder: CpuDecoder, seed: int = 0) -> None:
        self.decoder = decoder
        self.free = list(range(decoder.num_blocks))
        random.Random(seed).shuffle(self.free)

    def sequence(self) -> Sequence:
        return Sequence(0, [[] for _ in self.decoder.groups])

    def step(self, work: list[tuple[Sequence, list[int]]], every_row: bool = True) -> list[torch.Tensor]:
        """Runs new tokens of each sequence; logits by sequence, [new tokens, vocab] (or of the last row only)."""
        size, d = self.decoder.block_size, self.decoder
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        starts, contexts = [0], []
        slots: list[list[int]] = [[] for _ in d.groups]
        for sequence, new in work:
            first, last = sequence.length, sequence.length + len(new)
            for table in sequence.tables:
                while len(table) * size < last:
                    table.append(self.free.pop())
            for group, table in enumerate(sequence.tables):
                slots[group] += [table[p // size] * size + p % size for p in range(first, last)]
            rows += range(len(ids), len(ids) + len(new)) if every_row else [len(ids) + len(new) - 1]
            ids += new
            positions += range(first, last)
            starts.append(len(ids))
            contexts.append(last)
            sequence.length = last
        longest = max(len(table) for sequence, _ in work for table in sequence.tables)
        tables = [
            _int([s.tables[g] + [-1] * (longest - len(s.tables[g])) for s, _ in work]) for g in range(len(d.groups))
        ]
        logits = torch.full((len(rows), d.spec.vocab_size), float("nan"))
        best = torch.empty(len(rows), dtype=torch.int32)
        arguments = (
            _int(ids),
            _int(positions),
            _int(starts),
            _int(contexts),
            tables,
            [_int(s) for s in slots],
            _int(rows),
        )
        d.step(*arguments, argmax_out=best, logits_out=logits)
        assert torch.equal(best.long(), logits.argmax(1))
        self.last_arguments = arguments
        return list(torch.split(logits, [len(new) if every_row else 1 for _, new in work]))


def _int(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    if library := os.environ.get("TANDEM_TEST_LIBRARY"):  # a library built with sanitizers
        return Kernels(open_library(Path(library)), Path(library), ("avx512_bf16", "avx512", "avx2", "portable"))
    kernels, reason = load_kernels()
    if kernels is None:
        pytest.skip(reason)
    return kernels


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, kernels: Kernels) -> str:
    """Every instruction set of this machine, and the emulation of AMX."""
    name = str(request.param)
    if name not in kernels.variants and name != "amx_emulated":
        pytest.skip(f"no {name} here")
    return name


@dataclass
class TinyModel:
    """A random model in transformers, and its shape as Tandem has it."""

    reference: Any
    spec: ModelSpec

    def __post_init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = dict(self.reference.state_dict())

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self.tensors[name].to(dtype)

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        result: torch.Tensor = self.reference(torch.tensor([tokens])).logits[0]
        return result

    def decoder(self, kernels: Kernels, **settings: Any) -> CpuDecoder:
        defaults: dict[str, Any] = {
            "weight_dtype": "float32",
            "kv_dtype": "float32",
            "threads": 2,
            "num_blocks": 512,
            "max_tokens": 256,
        }
        return CpuDecoder(self.spec, self.read, kernels=kernels, **(defaults | settings))


SIZES: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def _hf(sizes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": sizes["num_layers"],
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_attention_heads": sizes["num_heads"],
        "num_key_value_heads": sizes["num_kv_heads"],
        "head_dim": sizes["head_dim"],
        "vocab_size": sizes["vocab_size"],
        "max_position_embeddings": sizes["max_position"],
        "rms_norm_eps": sizes["rms_norm_eps"],
        "attn_implementation": "eager",
        "initializer_range": 0.15,
        "pad_token_id": 0,
    } | more


def _randomise(model: Any) -> None:
    """Norms and biases too: a fresh model has ones and zeros there, which hide mistakes."""
    for name, tensor in model.named_parameters():
        if "norm" in name or "bias" in name:
            tensor.data += torch.randn_like(tensor) * 0.2


def _llama() -> TinyModel:
    import transformers as tf

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = tf.LlamaConfig(**_hf(SIZES, rope_parameters=scaling | {"rope_theta": 10000.0}, tie_word_embeddings=False))
    rope = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64)
    return TinyModel(tf.LlamaForCausalLM(config), ModelSpec(family="llama", rope_scaling=rope, **SIZES))


def _mistral() -> TinyModel:
    import transformers as tf

    sizes = SIZES | {"num_heads": 4, "num_kv_heads": 4, "head_dim": 48}
    config = tf.MistralConfig(
        **_hf(sizes, sliding_window=40, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    )
    return TinyModel(tf.MistralForCausalLM(config), ModelSpec(family="mistral", layer_windows=(40, 40, 40), **sizes))


def _qwen2() -> TinyModel:
    import transformers as tf

    sizes = SIZES | {"num_heads": 7, "num_kv_heads": 1, "head_dim": 64, "hidden_size": 100, "intermediate_size": 130}
    config = tf.Qwen2Config(
        **_hf(sizes, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    )
    return TinyModel(
        tf.Qwen2ForCausalLM(config), ModelSpec(family="qwen2", qkv_bias=True, tie_embeddings=True, **sizes)
    )


def _qwen3() -> TinyModel:
    import transformers as tf

    sizes = SIZES | {"head_dim": 80}
    config = tf.Qwen3Config(
        **_hf(sizes, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=False)
    )
    return TinyModel(tf.Qwen3ForCausalLM(config), ModelSpec(family="qwen3", qk_norm=True, **sizes))


def _gemma3() -> TinyModel:
    import transformers as tf

    sizes = SIZES | {"num_layers": 6, "num_heads": 4, "num_kv_heads": 1, "head_dim": 64, "rope_theta": 1000000.0}
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = tf.Gemma3TextConfig(
        **_hf(sizes, sliding_window=24, layer_types=kinds, query_pre_attn_scalar=50, tie_word_embeddings=True),
        final_logit_softcapping=20.0,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    )
    spec = ModelSpec(
        family="gemma3",
        qk_norm=True,
        post_norms=True,
        norm_plus_one=True,
        activation="gelu_tanh",
        tie_embeddings=True,
        local_rope_theta=10000.0,
        attention_scale=50**-0.5,
        logit_soft_cap=20.0,
        embedding_scale=sizes["hidden_size"] ** 0.5,
        layer_windows=(24, 24, None, 24, 24, None),
        **sizes,
    )
    return TinyModel(tf.Gemma3ForCausalLM(config), spec)


FAMILIES: dict[str, Callable[[], TinyModel]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
_made: dict[str, TinyModel] = {}


def tiny_model(family: str) -> TinyModel:
    if family not in _made:
        torch.manual_seed(7)
        model = FAMILIES[family]()
        _randomise(model.reference)
        model.reference.eval()
        _made[family] = model
    return _made[family]


@pytest.fixture(params=list(FAMILIES))
def model(request: pytest.FixtureRequest) -> TinyModel:
    return tiny_model(str(request.param))


@pytest.fixture
def llama() -> TinyModel:
    return tiny_model("llama")


@pytest.fixture
def gemma3() -> TinyModel:
    return tiny_model("gemma3")


@pytest.fixture
def paged() -> type[Paged]:
    return Paged


def tokens_of(length: int, seed: int = 1) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(1, VOCAB) for _ in range(length)]


@pytest.fixture
def tokens() -> Callable[..., list[int]]:
    return tokens_of
