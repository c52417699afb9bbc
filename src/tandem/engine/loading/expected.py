"""Which tensors a network has, by Hugging Face's names, and their shapes; and the check of a file against that.

Knows no file format. Both checkpoints use it, so that no tensor of a wrong shape gets past opening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tandem.core.errors import ModelDamaged
from tandem.engine.models.spec import ModelSpec

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def expected_tensors(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    """(name, shape) of every tensor, layer by layer; matrices are [out, in]. A tied head isn't among them."""
    yield EMBEDDING, (spec.vocab_size, spec.hidden_size)
    for layer in range(spec.num_layers):
        for name, shape in _layer_tensors(spec):
            yield f"model.layers.{layer}.{name}", shape
    yield FINAL_NORM, (spec.hidden_size,)
    if not spec.tie_embeddings:
        yield HEAD, (spec.vocab_size, spec.hidden_size)


def _layer_tensors(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    yield from _attention(spec)
    yield "mlp.gate_proj.weight", (spec.intermediate_size, spec.hidden_size)
    yield "mlp.up_proj.weight", (spec.intermediate_size, spec.hidden_size)
    yield "mlp.down_proj.weight", (spec.hidden_size, spec.intermediate_size)
    yield "input_layernorm.weight", (spec.hidden_size,)
    yield "post_attention_layernorm.weight", (spec.hidden_size,)
    if spec.post_norms:
        yield "pre_feedforward_layernorm.weight", (spec.hidden_size,)
        yield "post_feedforward_layernorm.weight", (spec.hidden_size,)


def _attention(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
        yield f"self_attn.{part}_proj.weight", (size, spec.hidden_size)
        if spec.qkv_bias:
            yield f"self_attn.{part}_proj.bias", (size,)
    yield "self_attn.o_proj.weight", (spec.hidden_size, q_size)
    if spec.qk_norm:
        yield "self_attn.q_norm.weight", (spec.head_dim,)
        yield "self_attn.k_norm.weight", (spec.head_dim,)


def check_tensors(
    spec: ModelSpec, found: Mapping[str, Shape], source: str, show: Callable[[str], str] = str
) -> dict[str, Shape]:
    """Name → shape of the network's tensors, once all are `found` in that shape. `show`: a name as the file has it."""
    checked: dict[str, Shape] = {}
    for name, shape in expected_tensors(spec):
        if name not in found:
            raise ModelDamaged(f"{source}: tensor {show(name)} is missing; it should have shape {list(shape)}.")
        if found[name] != shape:
            raise ModelDamaged(
                f"{source}: tensor {show(name)} has shape {list(found[name])}; it should have {list(shape)}."
            )
        checked[name] = shape
    return checked


def check_heads(num_heads: int, num_kv_heads: int, head_dim: int, source: str) -> None:
    """Every KV head serves the same number of heads, and RoPE turns pairs."""
    if head_dim % 2:
        raise ModelDamaged(f"{source}: the head size is {head_dim}; it must be even.")
    if num_heads % num_kv_heads:
        raise ModelDamaged(f"{source}: {num_heads} attention heads can't share {num_kv_heads} KV heads evenly.")
