"""The decoder behind compiled graphs: the graphs' edges, padding, sessions.

The graphs run uncompiled here, which is quick; tests/compiler/test_build.py has them compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.compiler.lowering import GraphLimits, LoweredDecoder, export_batch, export_single
from tandem.compiler.progress import SilentStages
from tandem.compiler.stack import make_stack
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import load_kernels
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.quantization.model import quantize
from tandem.engine.quantization.recipe import Recipe
from tandem.engine.runner.compiled import CompiledDecoder, Graphs
from tandem.engine.runner.graphs import Graph
from tandem.engine.runner.native import StepDecoder
from tandem.engine.runner.stack_op import session
from tests.engine.models.tiny import VOCAB, llama_config, save_random

MAX_TOKENS, BLOCK_SIZE, NUM_BLOCKS = 24, 16, 12


class Opened:
    """The same image twice: behind the graphs, and without them."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        kernels, reason = load_kernels()
        if kernels is None:
            pytest.skip(f"no native kernels: {reason}")
        save_random(llama_config(), folder, seed)
        model = quantize(open_checkpoint(folder), Recipe(precision="w8a8"))
        stack = make_stack(model, torch.bfloat16, kernels, SilentStages())
        self.module = LoweredDecoder(stack.image)
        self.plain, self._native = (
            CpuDecoder.from_image(
                model.spec,
                stack.image,
                stack.entries,
                kernels=kernels,
                kv_dtype="int8",
                threads=2,
                block_size=BLOCK_SIZE,
                num_blocks=NUM_BLOCKS,
                max_tokens=MAX_TOKENS,
                max_context=64,
            )
            for _ in range(2)
        )
        self.calls: list[str] = []
        graphs = Graphs(self._graph("single"), self._graph("batch"), stack.image)
        self.compiled = CompiledDecoder(self._native, graphs)

    def _graph(self, name: str) -> Graph:
        def run(arguments: list[Tensor]) -> list[Tensor]:
            self.calls.append(name)
            counts, ids, positions, starts, lengths, table, slots, rows, logits = arguments
            return [self.module(counts, ids, positions, starts, lengths, [table], [slots], rows, logits)]

        return run


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return Opened(tmp_path_factory.mktemp("model"))


def step_of(queries: list[int], contexts: list[int]) -> list[Any]:
    """Sequence s has the blocks 3 s … 3 s + 2."""
    positions = [p for n, c in zip(queries, contexts, strict=True) for p in range(c - n, c)]
    owners = [s for s, n in enumerate(queries) for _ in range(n)]
    table = torch.tensor([[3 * s + i for i in range(3)] for s in range(len(queries))], dtype=torch.int32)
    slots = [3 * s * BLOCK_SIZE + p for s, p in zip(owners, positions, strict=True)]
    ids = [(7 * p + 31 * s) % VOCAB for s, p in zip(owners, positions, strict=True)]
    starts = [sum(queries[:s]) for s in range(len(queries) + 1)]
    tokens, places, begins, lengths, slot = (
        torch.tensor(v, dtype=torch.int32) for v in (ids, positions, starts, contexts, slots)
    )
    return [tokens, places, begins, lengths, [table], [slot]]


def run(decoder: StepDecoder, step: list[Any], rows: Tensor, argmax: Tensor, logits: Tensor | None = None) -> None:
    ids, positions, starts, lengths, tables, slots = step
    decoder.step(ids, positions, starts, lengths, tables, slots, rows, argmax_out=argmax, logits_out=logits)


# Around the edges of both graphs: one token or two, one sequence or two, no row, one, two, all.
STEPS = [
    ([1], [1], [0]),
    ([1], [2], []),
    ([2], [4], [1]),
    ([2], [6], [0, 1]),
    ([2], [8], []),
    ([3], [11], [2]),
    ([1, 1], [12, 1], [0, 1]),
    ([1, 1], [13, 2], [1]),
    ([5, 1, 2], [18, 3, 2], [4, 5, 7]),
    ([1], [19], [0]),
    ([23, 1], [42, 4], [22, 23]),
]


@pytest.mark.parametrize("wants_logits", [False, True])
def test_every_edge_of_the_graphs_gives_what_the_kernels_give(opened: Opened, wants_logits: bool) -> None:
    for queries, contexts, rows in STEPS:
        step = step_of(queries, contexts)
        wanted = torch.tensor(rows, dtype=torch.int32)
        answers: list[tuple[Tensor, Tensor]] = []
        decoders: tuple[StepDecoder, StepDecoder] = (opened.plain, opened.compiled)
        for decoder in decoders:
            argmax, logits = torch.full((len(rows),), -1, dtype=torch.int32), torch.full((len(rows), VOCAB), -1.0)
            run(decoder, step, wanted, argmax, logits if wants_logits else None)
            answers.append((argmax, logits))
        assert torch.equal(answers[0][0], answers[1][0]), (queries, rows)
        assert torch.equal(answers[0][1], answers[1][1]), (queries, rows)
        assert opened.calls[-1] == ("single" if sum(queries) == 1 else "batch")


def test_blocks_are_copied_behind_the_graphs(opened: Opened) -> None:
    step, row = step_of([6], [6]), torch.tensor([5], dtype=torch.int32)
    argmax = torch.empty(1, dtype=torch.int32)
    run(opened.compiled, step, row, argmax)
    opened.compiled.copy_block(0, 9)
    following, logits = step_of([1], [7]), []
    for table in ([[0, 1, 2]], [[9, 1, 2]]):
        out = torch.empty(1, VOCAB)
        slot = torch.tensor([table[0][0] * BLOCK_SIZE + 6], dtype=torch.int32)
        moved = [*following[:4], [torch.tensor(table, dtype=torch.int32)], [slot]]
        run(opened.compiled, moved, row * 0, argmax, out)
        logits.append(out)
    assert torch.equal(*logits)


def test_two_engines_of_one_process_keep_apart(opened: Opened, tmp_path: Path) -> None:
    other = Opened(tmp_path, seed=5)
    step, row = step_of([4], [4]), torch.tensor([3], dtype=torch.int32)
    found = []
    for one in (opened, other, opened):
        out, argmax = torch.empty(1, VOCAB), torch.empty(1, dtype=torch.int32)
        run(one.compiled, step, row, argmax, out)
        found.append(out)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_a_session_that_fails_is_closed(opened: Opened) -> None:
    class Broken:
        def step(self, *arguments: object, **named: object) -> None:
            raise RuntimeError("no")

    image = torch.zeros(8, dtype=torch.uint8)
    module = LoweredDecoder(image)
    ints = torch.zeros(2, dtype=torch.int32)
    arguments = (torch.zeros(3, dtype=torch.int32), ints, ints, ints, ints, [ints], [ints], ints, torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="no"), session(image, Broken()):
        module(*arguments)
    with pytest.raises(KeyError):
        module(*arguments)


@pytest.mark.parametrize("single", [True, False])
def test_the_exported_graph_is_one_operator_and_its_constant_the_image(opened: Opened, single: bool) -> None:
    limits = GraphLimits(max_tokens=64, max_blocks=64, num_groups=1, vocab_size=VOCAB)
    program = (export_single if single else export_batch)(opened.module, limits)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert [str(node.target) for node in calls] == ["tandem.decoder.default"]
    assert program.state_dict["weights"].data_ptr() == opened.module.weights.data_ptr(), "the image is not copied"
