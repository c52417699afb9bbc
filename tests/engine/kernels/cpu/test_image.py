"""A decoder over a packed image beside the same network in plain torch, with dequantised weights and rounded inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from tandem.core.errors import ModelDamaged
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import Kernels
from tandem.engine.kernels.cpu.weights import DecoderWeights, LayerWeights, Weight, form_of, kind_text, pack_image
from tandem.engine.kernels.ops.activations import rounded
from tandem.engine.kernels.reference import rms_norm, soft_cap_
from tandem.engine.quantization.dense import DenseNetwork
from tandem.engine.quantization.fp8 import round_to_fp8
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.quantization.rounding import round_matrix

Quantise = Callable[[Tensor], Weight]


def _int(kind: Any, group: int, symmetric: bool, activations: Any) -> Quantise:
    def quantise(w: Tensor) -> Weight:
        fits = group == 0 or w.shape[1] % group == 0
        if not fits or (activations == "int8_group" and w.shape[1] % 32):
            return w.bfloat16()
        size = group or w.shape[1]
        return round_matrix(w, kind, size, symmetric=symmetric, activations=activations, search=False)

    return quantise


KINDS: dict[str, Quantise] = {
    "w8a8": _int("int8", 0, True, "int8_token"),
    "int8 in rows": _int("int8", 0, False, "int8_group"),
    "int8": _int("int8", 32, True, "int8_group"),
    "int4": _int("int4", 32, False, "int8_group"),
    "w4a8": _int("int4", 32, True, "int8_token"),
    "fp8": round_to_fp8,
    "bf16": lambda w: w.bfloat16(),
}


def weights_of(model: Any, quantise: Quantise, head: Quantise | None = None) -> DecoderWeights:
    spec = model.spec
    plus = 1.0 if spec.norm_plus_one else 0.0

    def read(name: str) -> Tensor:
        tensor: Tensor = model.read(name, torch.float32)
        return tensor

    def layer(index: int) -> LayerWeights:
        at = f"model.layers.{index}."

        def joined(*names: str, kind: str = "weight") -> Tensor:
            return torch.cat([read(f"{at}{name}.{kind}") for name in names])

        def norm(name: str) -> Tensor:
            return read(f"{at}{name}.weight") + plus

        qkv = [f"self_attn.{x}_proj" for x in "qkv"]
        middle = "pre_feedforward_layernorm" if spec.post_norms else "post_attention_layernorm"
        return LayerWeights(
            input_norm=norm("input_layernorm"),
            mlp_norm=norm(middle),
            qkv=quantise(joined(*qkv)),
            o=quantise(joined("self_attn.o_proj")),
            gate_up=quantise(joined("mlp.gate_proj", "mlp.up_proj")),
            down=quantise(joined("mlp.down_proj")),
            qkv_bias=joined(*qkv, kind="bias") if spec.qkv_bias else None,
            q_norm=norm("self_attn.q_norm") if spec.qk_norm else None,
            k_norm=norm("self_attn.k_norm") if spec.qk_norm else None,
            post_attention_norm=norm("post_attention_layernorm") if spec.post_norms else None,
            post_mlp_norm=norm("post_feedforward_layernorm") if spec.post_norms else None,
        )

    head = head or quantise
    embedding = read("model.embed_tokens.weight")
    return DecoderWeights(
        [layer(i) for i in range(spec.num_layers)],
        head(embedding if spec.tie_embeddings else read("lm_head.weight")),
        None if spec.tie_embeddings else head(embedding),
        read("model.norm.weight") + plus,
    )


def plain_logits(model: Any, weights: DecoderWeights, tokens: list[int]) -> Tensor:
    spec = model.spec
    network = DenseNetwork(spec, len(tokens))
    embedding = _floats(weights.embedding if weights.embedding is not None else weights.head)
    x = network.embed(torch.tensor([tokens]), embedding[tokens])
    qkv_sizes = [n * spec.head_dim for n in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)]
    for index, layer in enumerate(weights.layers):
        before = "pre_feedforward_layernorm" if spec.post_norms else "post_attention_layernorm"
        vectors = {"input_layernorm.weight": layer.input_norm, f"{before}.weight": layer.mlp_norm}
        if layer.post_attention_norm is not None and layer.post_mlp_norm is not None:
            vectors["post_attention_layernorm.weight"] = layer.post_attention_norm
            vectors["post_feedforward_layernorm.weight"] = layer.post_mlp_norm
        if layer.q_norm is not None and layer.k_norm is not None:
            vectors |= {"self_attn.q_norm.weight": layer.q_norm, "self_attn.k_norm.weight": layer.k_norm}
        if layer.qkv_bias is not None:
            for name, bias in zip("qkv", torch.split(layer.qkv_bias, qkv_sizes), strict=True):
                vectors[f"self_attn.{name}_proj.bias"] = bias

        def product(part: str, x: Tensor, layer: LayerWeights = layer) -> Tensor:
            name = part.split(".")[1].removesuffix("_proj")
            if name in ("q", "k", "v"):
                return torch.split(_product(layer.qkv, x), qkv_sizes, -1)["qkv".index(name)]
            if name in ("gate", "up"):
                return _product(layer.gate_up, x).chunk(2, -1)[name == "up"]
            return _product(layer.o if name == "o" else layer.down, x)

        x, _ = network.layer(index, vectors, product, x)
    hidden = rms_norm(x[0], weights.final_norm, spec.rms_norm_eps)
    return soft_cap_(_product(weights.head, hidden), spec.logit_soft_cap)


def _floats(w: Weight) -> Tensor:
    return w.dequantize() if isinstance(w, QuantizedMatrix) else w.float()


def _product(w: Weight, x: Tensor) -> Tensor:
    return linear(rounded(x, w.activations) if isinstance(w, QuantizedMatrix) else x, _floats(w))


def decoder_of(model: Any, weights: DecoderWeights, kernels: Kernels, **settings: Any) -> CpuDecoder:
    image, entries = pack_image(model.spec, weights, kernels)
    defaults: dict[str, Any] = {"kv_dtype": "float32", "threads": 2, "num_blocks": 512, "max_tokens": 256}
    return CpuDecoder.from_image(model.spec, image, entries, kernels=kernels, **(defaults | settings))


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_and_kind(kernels: Kernels, model: Any, kind: str, paged: Any, tokens: Any) -> None:
    prompt, weights = tokens(60), weights_of(model, KINDS[kind])
    run = paged(decoder_of(model, weights, kernels, variant="portable"))
    whole = run.step([(run.sequence(), prompt)])[0]
    plain = plain_logits(model, weights, prompt)
    if kind in ("fp8", "bf16"):
        assert error(whole, plain) < 1e-4
        return
    # An input's code that falls on the other side of a tie moves logits by up to hundredths: so does disturbing the
    # plain network's inputs by 1e-6 of themselves. Some token is free of such codes, and agrees.
    assert error(whole, plain) < 0.03
    assert min(error(*rows) for rows in zip(whole, plain, strict=True)) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
def test_every_instruction_set(
    kernels: Kernels, variant: str, kind: str, kv: str, gemma3: Any, paged: Any, tokens: Any
) -> None:
    prompt, weights = tokens(60), weights_of(gemma3, KINDS[kind])
    run = paged(decoder_of(gemma3, weights, kernels, variant=variant, kv_dtype=kv))
    sequence = run.sequence()
    logits = torch.cat([run.step([(sequence, prompt[:50])])[0], *(run.step([(sequence, [t])])[0] for t in prompt[50:])])
    assert error(logits, plain_logits(gemma3, weights, prompt)) < 0.06


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_in_any_batch_and_chunk_and_on_any_threads(
    kernels: Kernels, kind: str, llama: Any, paged: Any, tokens: Any
) -> None:
    prompts = [tokens(n, seed=n) for n in (40, 7, 33, 64)]
    weights = weights_of(llama, KINDS[kind])
    run = paged(decoder_of(llama, weights, kernels, kv_dtype="int8"))
    alone = [run.step([(run.sequence(), prompt)])[0] for prompt in prompts]
    together = run.step([(run.sequence(), prompt) for prompt in prompts])
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    for threads in (1, 3):
        other = paged(decoder_of(llama, weights, kernels, kv_dtype="int8", threads=threads))
        sequences = [other.sequence() for _ in prompts]
        first = other.step([(s, p[:-5]) for s, p in zip(sequences, prompts, strict=True)])
        rest = [other.step([(s, [p[i]]) for s, p in zip(sequences, prompts, strict=True)]) for i in range(-5, 0)]
        for i, a in enumerate(alone):
            assert torch.equal(torch.cat([first[i], *(step[i] for step in rest)]), a)


def test_a_network_of_mixed_kinds(kernels: Kernels, llama: Any, paged: Any, tokens: Any) -> None:
    weights = weights_of(llama, KINDS["int4"], KINDS["int8"])
    for index, kind in enumerate(("w8a8", "bf16")):
        weights.layers[index] = weights_of(llama, KINDS[kind]).layers[index]
    mixed = replace(weights, embedding=weights_of(llama, KINDS["fp8"]).embedding)
    prompt = tokens(60)
    run = paged(decoder_of(llama, mixed, kernels))
    assert error(run.step([(run.sequence(), prompt)])[0], plain_logits(llama, mixed, prompt)) < 0.03


def test_the_image_is_not_written_and_says_what_is_in_it(kernels: Kernels, llama: Any, paged: Any, tokens: Any) -> None:
    weights = weights_of(llama, KINDS["int4"], KINDS["w8a8"])
    image, entries = pack_image(llama.spec, weights, kernels)
    before, results = image.clone(), list[Tensor]()
    decoder = CpuDecoder.from_image(llama.spec, image, entries, kernels=kernels, num_blocks=16, max_tokens=64)
    paged(decoder).step([(paged(decoder).sequence(), tokens(20))])
    assert torch.equal(image, before)
    copied = CpuDecoder.from_image(llama.spec, image, entries, kernels=kernels, num_blocks=16, max_tokens=64, copy=True)
    for one in (decoder, copied):
        one_run = paged(one)
        results.append(one_run.step([(one_run.sequence(), tokens(20))])[0])
    assert torch.equal(*results)
    kinds = {entry.name: (entry.kind, entry.group_size) for entry in entries}
    assert kinds["layers.0.qkv"] == ("int4 int8_group offset", 32)
    assert kinds["head"] == ("int8 int8_token", 0)
    assert kinds["final_norm"] == ("vector", 0)
    assert kind_text(form_of(weights.layers[0].qkv)) == "int4 int8_group offset"


def test_an_image_of_another_network_is_refused(kernels: Kernels, llama: Any) -> None:
    image, entries = pack_image(llama.spec, weights_of(llama, KINDS["w8a8"]), kernels)

    def open_with(spec: Any, given: Any) -> None:
        CpuDecoder.from_image(spec, image, given, kernels=kernels, num_blocks=16, max_tokens=64)

    with pytest.raises(ModelDamaged, match="configuration says"):
        open_with(replace(llama.spec, hidden_size=128), entries)
    with pytest.raises(ModelDamaged, match="not in the image"):
        open_with(replace(llama.spec, num_layers=4), entries)
    with pytest.raises(ModelDamaged, match="doesn't know"):
        open_with(llama.spec, [replace(e, kind="int3 float") if e.name == "head" else e for e in entries])
    with pytest.raises(ModelDamaged, match="has the shape"):
        pack_image(replace(llama.spec, vocab_size=99), weights_of(llama, KINDS["bf16"]), kernels)
