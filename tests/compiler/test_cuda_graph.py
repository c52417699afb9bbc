"""What a GPU's graph is rewritten to, and that it computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.fx import GraphModule

from tandem.compiler.cuda_graph import export_open, lower_for_gpu, of_single_tokens
from tandem.compiler.export import graph_of
from tandem.compiler.network import Network
from tandem.compiler.passes.graph import arguments, calls
from tandem.compiler.passes.pipeline import fuse
from tandem.core.errors import ModelUnsupported
from tandem.engine.kernels.ops.kv_cache import cache_shape, widened
from tests.compiler.passes.networks import LLAMA, STEPS, Precision, caches_of, make_network, make_step
from tests.compiler.test_export import Undecided

TANDEM = torch.ops.tandem
CPU = torch.device("cpu")
SPEC = replace(LLAMA, tie_embeddings=False)


def fused(network: Network) -> GraphModule:
    graph = graph_of(export_open(network, 64, caches_of(SPEC, network), len(network.groups), CPU))
    fuse(graph)
    return graph


@pytest.fixture(scope="module")
def network() -> Network:
    return make_network(SPEC, Precision("int4", 32, "int8_group", symmetric=False))


def test_4_bit_codes_are_packed_and_their_inputs_stay_floats(network: Network) -> None:
    graph = fused(network)
    before = {name: tensor for name, tensor in graph.named_buffers() if name.endswith(".codes")}
    counts = lower_for_gpu(graph)
    products = calls(graph.graph, TANDEM.quantized_linear.default)
    assert list(counts.values()) == [len(products), len(before)]
    assert {arguments(node)["kind"] for node in products} == {"int4x2"}
    assert {arguments(node)["activations"] for node in products} == {"float"}
    after = dict(graph.named_buffers())
    assert not before.keys() & after.keys()
    for name, codes in before.items():
        assert after[f"{name}_packed"].numel() * 2 == codes.numel()


def test_the_lowered_graph_is_the_network_without_rounded_inputs(network: Network) -> None:
    plain = make_network(SPEC, Precision("int4", 32, "float", symmetric=False))
    graph = fused(network)
    lower_for_gpu(graph)
    ours, theirs = caches_of(SPEC, network).allocate(), caches_of(SPEC, network).allocate()
    for queries, contexts, rows in STEPS:
        step = make_step(network, queries, contexts, rows)
        assert (graph(*step, ours) - plain(*step, theirs)).abs().max() < 1e-4


def test_w8a8_keeps_its_integers() -> None:
    graph = fused(make_network(SPEC, Precision("int8", 0, "int8_token")))
    assert set(lower_for_gpu(graph).values()) == {0}
    assert calls(graph.graph, TANDEM.int8_linear.default)


def test_single_tokens_share_the_weights_and_leave_the_graph_alone(network: Network) -> None:
    graph = fused(network)
    single = of_single_tokens(graph)
    ours, theirs = dict(single.named_buffers()), dict(graph.named_buffers())
    assert ours.keys() == theirs.keys()
    assert all(ours[name].data_ptr() == tensor.data_ptr() for name, tensor in theirs.items())
    marked = [arguments(node)["one_query"] for node in calls(single.graph, TANDEM.attention.default)]
    assert marked == [True] * SPEC.num_layers
    assert not any(arguments(node)["one_query"] for node in calls(graph.graph, TANDEM.attention.default))


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("count", [2, 3])
def test_a_padded_bucket_gives_what_the_batch_gives(network: Network, count: int, kv_dtype: torch.dtype) -> None:
    """Padding: token 0 at position 0 of an empty context, in slot -1, whatever its table says."""
    graph = fused(network)
    shape = cache_shape(40, SPEC.num_kv_heads, 4, SPEC.head_dim, kv_dtype)
    memory = [[torch.zeros(shape, dtype=kv_dtype) for _ in range(network.num_caches)] for _ in range(2)]
    for caches in memory:
        graph(*make_step(network, [7, 3, 6][:count], [7, 3, 6][:count], [0]), caches)
    graph = of_single_tokens(graph)
    step = make_step(network, [1] * count, [8, 4, 7][:count], range(count))
    expected = graph(*step, memory[0])
    spare = 4 - count
    ids, positions, starts, lengths, tables, slots, rows = step
    zeros = torch.zeros(spare, dtype=torch.int32)
    padded = [
        *(torch.cat([ids, zeros]), torch.cat([positions, zeros]), torch.cat([starts, zeros + count])),
        torch.cat([lengths, zeros]),
        [torch.cat([table, table[:1].expand(spare, -1)]) for table in tables],
        [torch.cat([own, own.new_full((spare,), -1)]) for own in slots],
        torch.cat([rows, rows.new_zeros(spare)]),
    ]
    got = graph(*padded, memory[1])
    assert (got[:count] - expected).abs().max() < (1e-5 if kv_dtype == torch.float32 else 0.02)
    differences = [(widened(a) - widened(b)).abs().max() for a, b in zip(*memory, strict=True)]
    assert max(differences) < (1e-5 if kv_dtype == torch.float32 else 0.02)


def test_what_depends_on_numbers_is_refused() -> None:
    network = make_network(SPEC)
    network.__class__ = Undecided
    with pytest.raises(ModelUnsupported, match=r"can't be exported for a GPU: .* paged engine runs it"):
        export_open(network, 64, caches_of(SPEC, network), len(network.groups), CPU)
