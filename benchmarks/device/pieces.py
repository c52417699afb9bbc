"""Block tables, and quantised products by tiling."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from benchmarks.device.common import Floors, Sizes, gpu_ms, make_plan, make_request, wall_ms
from benchmarks.device.models import random_matrix

from tandem.engine.kernels.triton.language import num_processors
from tandem.engine.kernels.triton.quantized_linear import LARGE, MEDIUM, SMALL, Tiles, choose_tiles, quantized_linear
from tandem.engine.runner.cuda_inputs import DeviceTables, StepInputs


def tables(device: torch.device, sizes: Sizes) -> list[dict[str, float]]:
    return [_table_row(context, device, sizes) for context in sizes.table_contexts]


def _table_row(context: int, device: torch.device, sizes: Sizes) -> dict[str, float]:
    """A step of as many sequences as there are seats: their tables whole from pinned memory; the runner's upload, where
    none of them or all of them have a new block; and the gather that a compiled graph wants."""
    seats, blocks = sizes.batches[-1], context // sizes.block_size
    whole = torch.zeros(seats, blocks, dtype=torch.int32, pin_memory=device.type == "cuda")
    there = torch.zeros(seats, blocks, dtype=torch.int32, device=device)
    kept = DeviceTables(1, seats, blocks, device)
    inputs = StepInputs(kept, 1, seats, seats, sizes.block_size)
    plan = make_plan([(make_request(1, blocks, 1, first_block=0), 0, 1) for _ in range(seats)])

    def upload() -> None:
        inputs.upload(plan.scheduled, range(seats), padded_to=seats)

    def upload_new_blocks() -> None:
        for scheduled in plan.scheduled:
            kept._states[scheduled.request].lengths[0] -= 1
        upload()

    rows, gathered = torch.arange(seats, device=device), torch.empty_like(kept.on_device[0])
    return {
        "context": context,
        "sequences": seats,
        "whole_ms": wall_ms(partial(there.copy_, whole, non_blocking=True), sizes.repeats),
        "step_ms": wall_ms(upload, sizes.repeats),
        "with_new_blocks_ms": wall_ms(upload_new_blocks, sizes.repeats),
        "gather_ms": gpu_ms(lambda: torch.index_select(kept.on_device[0], 0, rows, out=gathered), sizes.repeats),
    }


def products(device: torch.device, sizes: Sizes, floors: Floors) -> list[dict[str, Any]]:
    """gate and up of one layer. `floor_ms`: the weights read, or the multiplications made, whichever is longer."""
    found = []
    for kind, group in (("int8", 0), ("int8", 64), ("int4x2", 64), ("fp8", 0)):
        matrix = random_matrix(2 * sizes.inner, sizes.hidden, kind, group, device)
        num_bytes = sum(t.nbytes for t in (matrix.codes, matrix.scale, matrix.offset) if t is not None)
        for tokens in sizes.product_tokens:
            x = torch.randn(tokens, sizes.hidden, device=device).bfloat16()
            chosen = choose_tiles(tokens, matrix, is_wide=False, processors=num_processors(device))
            times = {
                str(tuple(tiles)): gpu_ms(partial(quantized_linear, x, matrix, tiles=tiles), sizes.repeats)
                for tiles in _candidates(chosen, tokens)
            }
            operations = 2 * tokens * matrix.inputs * matrix.outputs
            floor_ms = max(num_bytes / floors.bytes_s, operations / floors.operations_s) * 1e3
            own = times[str(tuple(chosen))]
            found.append(
                {
                    "kind": kind,
                    "group": group,
                    "tokens": tokens,
                    "floor_ms": floor_ms,
                    "ms": own,
                    "of_roofline": floor_ms / own,
                    "best": min(times, key=lambda name: times[name]),
                    "best_ms": min(times.values()),
                }
            )
    return found


def _candidates(chosen: Tiles, tokens: int) -> list[Tiles]:
    """The chosen one, its neighbours in splits, and the shapes for fewer and more tokens: eight at most."""
    near = [chosen, *(chosen._replace(splits=s) for s in (1, 2, 4) if s != chosen.splits)]
    shapes = [t._replace(inputs=min(t.inputs, chosen.inputs)) for t in (SMALL, MEDIUM, LARGE) if t.rows < 4 * tokens]
    return list(dict.fromkeys([*near, *shapes]))
