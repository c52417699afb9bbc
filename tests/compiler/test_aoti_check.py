"""Copies of caches in generated code: none in a network's, found where there is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tandem.engine.kernels.ops  # noqa: F401  (registers the operators)
from tandem.compiler.aoti_check import generated_code, pool_copies
from tandem.compiler.export import Caches, export_fused, export_network, graph_of
from tandem.compiler.passes.pipeline import fuse
from tests.compiler.passes.networks import LIMITS, LLAMA, make_network, make_step

OPTIONS: dict[str, Any] = {"aot_inductor.package_constants_in_so": False}


def test_a_compiled_network_copies_no_cache(tmp_path: Path) -> None:
    spec = replace(LLAMA, num_layers=1)
    network = make_network(spec)
    caches = Caches(1, 5000, spec.num_kv_heads, 4, spec.head_dim, torch.float32)
    graph = graph_of(export_network(network, LIMITS, caches))
    fuse(graph)
    program = export_fused(graph, LIMITS, caches, 1, single=False)
    package = tmp_path / "step.pt2"
    torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=OPTIONS)
    assert pool_copies(generated_code(package), caches.allocate()[0].numel()) == []

    loaded = torch._inductor.aoti_load_package(str(package))
    loaded.load_constants(dict(graph.named_buffers()), check_full_update=True, user_managed=True)
    step, ours, theirs = make_step(network, [3, 1], [3, 1], [2, 3]), caches.allocate(), caches.allocate()
    assert (loaded(*step, ours) - network(*step, theirs)).abs().max() < 1e-4
    assert torch.allclose(ours[0], theirs[0], atol=1e-5)


class Copies(nn.Module):
    """Writes into a copy of the cache."""

    def forward(self, keys: Tensor, slots: Tensor, cache: Tensor) -> Tensor:
        own = cache * 1.5
        torch.ops.tandem.write_kv(keys, keys, slots, own)
        return own


def test_a_copy_is_found(tmp_path: Path) -> None:
    inputs = (torch.zeros(3, 2, 16), torch.arange(3), torch.zeros(2, 5000, 2, 4, 16))
    package = tmp_path / "copies.pt2"
    program = torch.export.export(Copies(), inputs, strict=False)
    torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=OPTIONS)
    found = pool_copies(generated_code(package), inputs[2].numel())
    assert any("aoti_torch_empty_strided" in line for line in found)
    assert pool_copies(generated_code(package), inputs[2].numel() + 1) == []


def test_clones_are_found_whatever_their_size() -> None:
    assert pool_copies("AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_clone(arg0_1, &buf0));", 10) != []
