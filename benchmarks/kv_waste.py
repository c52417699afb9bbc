"""KV slots that are allocated and empty, averaged over time: on workload b, and on the Azure conversation trace.

    python -m benchmarks.kv_waste [--trace ../shared/data/azure_llm_2023_conv.csv] [--requests 500] [--block-size 16]

The real engine runs the real work; after every step the share of empty slots is read and weighted by the step's time.
Trace: Azure Public Dataset, CC-BY 4.0 (Splitwise, ISCA 2024); its lengths are kept, its texts are random tokens.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.workload import FIRST_ORDINARY_ID, VOCAB, Job, make_workload

from tandem.config.engine import EngineConfig
from tandem.core.clock import SystemClock
from tandem.core.sampling_params import SamplingParams
from tandem.engine.build import build_engine
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.messages import NewRequest


class Waste(NamedTuple):
    paged: float
    """Empty over allocated slots, time-averaged."""
    contiguous: float
    """The same if every seated request reserved the longest context at once, as servers without paging do."""
    seconds: float


def measure(jobs: Sequence[Job], config: EngineConfig) -> Waste:
    built = build_engine(config, open_checkpoint(resolve(config.model)), SystemClock())
    core, scheduler = built.core, built.core.scheduler
    for number, job in enumerate(jobs):
        sampling = SamplingParams(max_tokens=job.num_output, temperature=0.0, ignore_eos=True, seed=0)
        core.add(
            NewRequest(request_id=str(number), prompt_token_ids=job.prompt, sampling=sampling, arrival_s=float(number))
        )
    empty_s = allocated_s = used_s = reserved_s = 0.0
    started_s = last_s = time.monotonic()
    while core.has_work:
        core.step()
        stats, now_s = core.stats(), time.monotonic()
        step_s, last_s = now_s - last_s, now_s
        empty_s += stats.num_empty_slots * step_s
        allocated_s += stats.num_allocated_slots * step_s
        used_s += sum(r.num_computed_tokens for r in scheduler.running) * step_s
        reserved_s += len(scheduler.running) * built.ready.max_model_len * step_s
    return Waste(empty_s / allocated_s, 1 - used_s / reserved_s, last_s - started_s)


def azure(path: Path, count: int, longest: int) -> list[Job]:
    """The first `count` requests of the trace that fit the model's context."""
    rng = random.Random(1)
    jobs: list[Job] = []
    with path.open() as file:
        for row in csv.DictReader(file):
            prompt, output = int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))
            if prompt + output <= longest:
                jobs.append(Job([rng.randrange(FIRST_ORDINARY_ID, VOCAB) for _ in range(prompt)], output))
            if len(jobs) == count:
                break
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, default=Path("../shared/data/azure_llm_2023_conv.csv"))
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--block-size", type=int, default=16)
    args = parser.parse_args()
    config = EngineConfig(block_size=args.block_size, max_num_seqs=64, enable_prefix_caching=False, dtype="bfloat16")
    work = {"workload b": make_workload().b}
    if args.trace.exists():
        work[f"azure conversation, {args.requests} requests"] = azure(args.trace, args.requests, 8192)
    else:
        print(f"{args.trace} is missing: the Azure trace is left out")
    for name, jobs in work.items():
        waste = measure(jobs, config)
        print(
            f"{name}: {waste.paged:.2%} of allocated slots empty at block size {args.block_size}; "
            f"{waste.contiguous:.1%} if every request reserved the whole context ({waste.seconds:.0f} s)"
        )


if __name__ == "__main__":
    main()
