"""Exported graphs at the edges of what they are for, and what can't be exported."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tandem.compiler.export import export_fused, export_network, export_single, graph_of
from tandem.compiler.network import Network
from tandem.compiler.passes.graph import calls
from tandem.compiler.passes.pipeline import fuse
from tandem.core.errors import ModelUnsupported
from tests.compiler.passes.networks import LIMITS, LLAMA, SPECS, STEPS, caches_of, make_network, make_step


@pytest.fixture(scope="module")
def network() -> Network:
    return make_network(SPECS["qwen2"])


EDGES = [
    ([1, 1], [1, 1], [1]),
    ([2], [2], [0, 1]),
    ([16, 16, 16], [16, 16, 16], [47, 0, 15]),
    ([1] * 3, [5, 1, 4], [2]),
]
"""Two tokens; one sequence, one block; as many tokens as there may be; one wanted row."""


@pytest.mark.parametrize(("queries", "contexts", "rows"), EDGES)
def test_sizes_at_the_edges(network: Network, queries: list[int], contexts: list[int], rows: list[int]) -> None:
    caches = caches_of(SPECS["qwen2"], network)
    run = export_network(network, LIMITS, caches).module()
    step = make_step(network, queries, contexts, rows)
    assert torch.equal(run(*step, caches.allocate()), network(*step, caches.allocate()))


def test_more_tokens_than_the_limit_are_refused(network: Network) -> None:
    caches = caches_of(SPECS["qwen2"], network)
    run = export_network(network, LIMITS, caches).module()
    step = make_step(network, [16, 16, 17], [16, 16, 17], [0])
    with pytest.raises(AssertionError, match="<= 48"):
        run(*step, caches.allocate())


def test_one_token_is_a_graph_of_its_own(network: Network) -> None:
    caches = caches_of(SPECS["qwen2"], network)
    run = export_single(network, LIMITS, caches).module()
    ours, theirs = caches.allocate(), caches.allocate()
    for position in range(1, 7):
        step = make_step(network, [1], [position], [0])
        assert (run(*step, ours) - network(*step, theirs)).abs().max() < 1e-5


@pytest.mark.parametrize("single", [False, True])
def test_a_fused_graph_exports_again(network: Network, single: bool) -> None:
    caches = caches_of(SPECS["qwen2"], network)
    graph = graph_of((export_single if single else export_network)(network, LIMITS, caches))
    fuse(graph)
    program = export_fused(graph, LIMITS, caches, len(network.groups), single=single)
    step = make_step(network, *(([1], [1], [0]) if single else STEPS[0]))
    got = program.module()(*step, caches.allocate())
    assert (got - network(*step, caches.allocate())).abs().max() < 1e-5
    assert {n for n, _ in graph.named_buffers()} == set(program.state_dict) | set(program.constants)


def test_writing_operators_stand_where_they_were_called(network: Network) -> None:
    graph = graph_of(export_network(network, LIMITS, caches_of(SPECS["qwen2"], network)))
    writes = calls(graph.graph, torch.ops.tandem.write_kv.default)
    assert len(writes) == SPECS["qwen2"].num_layers
    assert not any("auto_functionalized" in str(node.target) for node in graph.graph.nodes)


class Undecided(Network):
    """Looks at a number in the middle of the graph."""

    def _logits(self, hidden: Tensor) -> Tensor:
        return super()._logits(hidden if hidden.sum() > 0 else -hidden)


def test_what_depends_on_numbers_is_refused() -> None:
    network = make_network(LLAMA)
    network.__class__ = Undecided
    with pytest.raises(ModelUnsupported, match=r"can't be exported .* paged engine runs it"):
        export_network(network, LIMITS, caches_of(LLAMA, network))
