"""A fused graph read back as data: the stack of layers with the names of their constants, so that one native operator
can stand for all of it.

The walk goes from the logits up to the token ids. It follows every edge, and afterwards nothing may be left that it did
not pass: a graph that does anything more, less or else is not matched, and the reason says where.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import arguments, aten, is_call, is_constant
from tandem.compiler.passes.matched import Match, MatchedDecoder, MatchedLayer, MatchedMatrix
from tandem.compiler.passes.patterns import CASTS, Bind, Call, match
from tandem.compiler.passes.pipeline import kernel_name

TANDEM = torch.ops.tandem
SOFT_CAPPED = Call(
    aten.mul.Tensor, (Call(aten.tanh.default, (Call(aten.div.Tensor, (Bind("x"), Bind("cap"))),)), Bind("cap"))
)
GATHERED = Call(aten.index_select.default, (Bind("x"), 0, Bind("rows")))
NORMS = (TANDEM.rms_norm.default, TANDEM.rms_norm_quantized.default)
ADDED_NORMS = (TANDEM.add_rms_norm.default, TANDEM.add_rms_norm_quantized.default)
GATES = (TANDEM.gate.default, TANDEM.gate_quantized.default)
PRODUCTS = (aten.linear.default, TANDEM.quantized_linear.default, TANDEM.int8_linear.default)


__all__ = ["Match", "MatchedDecoder", "MatchedLayer", "MatchedMatrix", "match_decoder"]


class _Mismatch(Exception):
    """What stands where something else was expected."""


def match_decoder(module: GraphModule) -> Match:
    """The whole graph as one stack: embedding, layers, final norm, head, in this order and nothing beside them."""
    walk = _Walk()
    try:
        decoder = walk.decoder(module)
        walk.expect_nothing_left(module)
    except _Mismatch as error:
        return Match(None, str(error))
    return Match(decoder, "")


@dataclass(slots=True)
class _Sum:
    """A place in the residual stream: the norm behind the sum x + delta; at the very start, of x alone."""

    norm: Node
    weight: str
    inner: str | None
    x: Node
    delta: Node | None


class _Walk:
    def __init__(self) -> None:
        self._passed: set[Node] = set()
        self._eps: set[float] = set()

    def decoder(self, module: GraphModule) -> MatchedDecoder:
        results = next(node for node in module.graph.nodes if node.op == "output").args[0]
        if not isinstance(results, (list, tuple)) or len(results) != 1:
            raise _Mismatch("the graph has another number of results than one")
        node, cap = self._uncapped(results[0])
        head, normed, bias = self._product(node, "the LM head")
        if bias is not None:
            raise _Mismatch("the LM head has a bias")
        place = self._sum(normed, "the final norm", is_final=True)
        final_norm, layers = place.weight, []
        while place.delta is not None:
            layer, place = self._layer(place)
            layers.append(layer)
        embedding, scale = self._embedding(place.x)
        if len(self._eps) != 1:
            raise _Mismatch(f"norms differ in their epsilon: {sorted(self._eps)}")
        return MatchedDecoder(tuple(layers[::-1]), embedding, scale, final_norm, head, self._eps.pop(), cap)

    def expect_nothing_left(self, module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "call_function" and node not in self._passed and kernel_name(node) is not None:
                raise _Mismatch(f"{node.format_node()} is no part of the stack")

    def _pass(self, node: Any, *targets: Any, at: str) -> dict[str, Any]:
        """The arguments of a call that has to be one of these operators."""
        if not is_call(node, *targets):
            raise _Mismatch(f"{at}: expected {' or '.join(str(t) for t in targets)}, found {_shown(node)}")
        self._passed.add(node)
        return arguments(node)

    def _uncapped(self, node: Node) -> tuple[Node, float | None]:
        """The product behind the soft cap and the conversion to float32, where they are."""
        cap = None
        found = match(SOFT_CAPPED, node)
        if found is not None:
            cap = float(found["cap"])
            tanh = next(n for n in node.all_input_nodes if is_call(n, aten.tanh.default))
            self._passed |= {node, tanh, *tanh.all_input_nodes}
            node = found["x"]
        if is_call(node, *CASTS):
            self._passed.add(node)
            node = node.all_input_nodes[0]
        return node, cap

    def _product(self, node: Any, at: str) -> tuple[MatchedMatrix, Node, str | None]:
        """Weight, input and bias. The input of an int8 product is the operator that made both codes and scales."""
        given = self._pass(node, *PRODUCTS, at=at)
        bias = _name(given["bias"], at)
        if node.target is aten.linear.default:
            return MatchedMatrix(_named(given["weight"], at), None, "float"), given["input"], bias
        activations = given.get("activations", "int8_token")
        weight = _matrix(given, activations, at)
        if node.target is TANDEM.quantized_linear.default:
            return weight, given["x"], bias
        source = _item(given["x_codes"], 0)
        if source is None or _item(given["x_scale"], 1) is not source:
            raise _Mismatch(f"{at}: codes and scales of its input come from different places")
        return weight, source, bias

    def _sum(self, normed: Node, at: str, *, is_final: bool = False) -> _Sum:
        norm = normed if is_call(normed, *NORMS, *ADDED_NORMS) else _item(normed, 0)
        given = self._pass(norm, *NORMS, *ADDED_NORMS, at=at)
        assert norm is not None
        self._eps.add(given["eps"])
        x, delta = given["x"], given.get("delta")
        if is_final:
            x, delta = self._gathered(x, at), self._gathered(delta, at)
        inner = _name(given.get("inner_weight"), at)
        return _Sum(norm, _named(given["weight"], at), inner, x, delta)

    def _gathered(self, node: Any, at: str) -> Node:
        found = match(GATHERED, node)
        if found is None or not _is_input(found["rows"], "sample_rows"):
            raise _Mismatch(f"{at}: expected the gather of the wanted rows, found {_shown(node)}")
        self._passed.add(node)
        x = found["x"]
        assert isinstance(x, Node)
        return x

    def _layer(self, behind: _Sum) -> tuple[MatchedLayer, _Sum]:
        """The layer whose result is added in `behind`, and the place that it starts from."""
        at = f"the layer before {behind.weight}"
        down, gated, down_bias = self._product(behind.delta, at)
        gate_node = gated if is_call(gated, *GATES) else _item(gated, 0)
        gate = self._pass(gate_node, *GATES, at=at)
        gate_up, normed, gate_bias = self._product(gate["gate_up"], at)
        middle = self._sum(normed, at)
        _expect_stream(behind.x, middle, at)
        o, mixed, o_bias = self._product(middle.delta, at)
        if any(bias is not None for bias in (down_bias, gate_bias, o_bias)):
            raise _Mismatch(f"{at}: a bias where none is known")
        attention = self._pass(_unflattened(mixed, at), TANDEM.attention.default, at=at)
        rope = self._pass(attention["queries"], TANDEM.rope_write.default, at=at)
        qkv, normed, qkv_bias = self._product(rope["qkv"], at)
        start = self._sum(normed, at)
        _expect_stream(middle.x, start, at)
        if rope["q_norm"] is not None:
            self._eps.add(rope["eps"])
        layer = MatchedLayer(
            input_norm=start.weight,
            qkv=qkv,
            qkv_bias=qkv_bias,
            q_norm=_name(rope["q_norm"], at),
            k_norm=_name(rope["k_norm"], at),
            o=o,
            post_attention_norm=middle.inner,
            mlp_norm=middle.weight,
            gate_up=gate_up,
            down=down,
            post_mlp_norm=behind.inner,
            activation=gate["activation"],
            num_heads=rope["num_heads"],
            num_kv_heads=rope["num_kv_heads"],
            rope=_named(rope["cos_sin"], at),
            scale=attention["scale"],
            window=attention["window"],
            soft_cap=attention["soft_cap"],
            group=_group(rope, attention, at),
            cache=_cache(rope, attention, at),
        )
        return layer, start

    def _embedding(self, node: Node) -> tuple[MatchedMatrix, float]:
        at, scale = "the embedding", 1.0
        if is_call(node, aten.mul.Tensor):
            x, factor = self._pass(node, aten.mul.Tensor, at=at).values()
            if not isinstance(factor, float):
                raise _Mismatch(f"{at}: scaled by {_shown(factor)}")
            node, scale = x, factor
        given = self._pass(node, aten.embedding.default, TANDEM.quantized_embedding.default, at=at)
        is_quantized = node.target is TANDEM.quantized_embedding.default
        if not _is_input(given["token_ids" if is_quantized else "indices"], "token_ids"):
            raise _Mismatch(f"{at}: it looks up something else than the token ids")
        if is_quantized:
            return _matrix(given, "float", at), scale
        return MatchedMatrix(_named(given["weight"], at), None, "float"), scale


def _matrix(given: dict[str, Any], activations: str, at: str) -> MatchedMatrix:
    name = _named(given["codes"], at).removesuffix(".codes")
    parts = {part: _name(given[part], at) for part in ("codes", "scale", "offset")}
    if any(found is not None and found != f"{name}.{part}" for part, found in parts.items()):
        raise _Mismatch(f"{at}: a weight is put together from {parts}")
    return MatchedMatrix(name, given["kind"], activations, parts["offset"] is not None)


def _item(node: Any, index: int) -> Node | None:
    """The call that `node` is result number `index` of."""
    if not is_call(node, operator.getitem) or node.args[1] != index:
        return None
    source = node.args[0]
    return source if isinstance(source, Node) else None


def _expect_stream(x: Node, place: _Sum, at: str) -> None:
    """x has to be the residual stream as it stands at `place`: its sum, or the embedding."""
    if place.delta is None:
        is_stream = x is place.x
    else:
        result = 1 if place.norm.target is TANDEM.add_rms_norm.default else 2
        is_stream = _item(x, result) is place.norm
    if not is_stream:
        raise _Mismatch(f"{at}: the residual stream takes another way, over {_shown(x)}")


def _unflattened(node: Node, at: str) -> Node:
    found = match(Call(aten.flatten.using_ints, (Bind("x"), 1)), node)
    if found is None:
        raise _Mismatch(f"{at}: expected the heads of attention side by side, found {_shown(node)}")
    x = found["x"]
    assert isinstance(x, Node)
    return x


def _group(rope: dict[str, Any], attention: dict[str, Any], at: str) -> int:
    plain = {
        "positions": rope["positions"],
        "query_start": attention["query_start"],
        "context_len": attention["context_len"],
    }
    for name, node in plain.items():
        if not _is_input(node, name):
            raise _Mismatch(f"{at}: {name} is {_shown(node)}")
    group = _index(attention["block_table"], "block_tables_", at)
    if _index(rope["slot_mapping"], "slot_mapping_", at) != group:
        raise _Mismatch(f"{at}: it writes by one group's slots and reads by another's blocks")
    return group


def _cache(rope: dict[str, Any], attention: dict[str, Any], at: str) -> int:
    if rope["cache"] is not attention["cache"]:
        raise _Mismatch(f"{at}: it writes one cache and reads another")
    return _index(attention["cache"], "caches_", at)


def _index(node: Any, prefix: str, at: str) -> int:
    """The number of an input that is one of a list."""
    if not isinstance(node, Node) or node.op != "placeholder" or not node.name.startswith(prefix):
        raise _Mismatch(f"{at}: expected an input {prefix}…, found {_shown(node)}")
    return int(node.name.removeprefix(prefix))


def _is_input(node: Any, name: str) -> bool:
    return isinstance(node, Node) and node.op == "placeholder" and node.name == name


def _named(node: Any, at: str) -> str:
    if not is_constant(node):
        raise _Mismatch(f"{at}: expected a weight, found {_shown(node)}")
    return str(node.target)


def _name(node: Any, at: str) -> str | None:
    return None if node is None else _named(node, at)


def _shown(node: Any) -> str:
    return str(node.format_node() if isinstance(node, Node) else node)
