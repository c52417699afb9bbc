"""Inter-token latency of 16 running chats while a 4,000-token prompt is computed beside them, by token budget.

    python -m benchmarks.long_prompt [--budgets 64 128 256 512]

The scheduler gives running answers their token first and the prompt what is left of the budget, so the budget bounds
how long a step, and with it the gap between two tokens, can become.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from benchmarks.workload import FIRST_ORDINARY_ID, VOCAB

from tandem.config.engine import EngineConfig
from tandem.core.clock import SystemClock
from tandem.core.sampling_params import SamplingParams
from tandem.engine.build import build_engine
from tandem.engine.core import EngineCore
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.messages import NewRequest

NUM_CHATS, CHAT_PROMPT, LONG_PROMPT = 16, 200, 4000


def add(core: EngineCore, name: str, length: int, max_tokens: int) -> None:
    rng = random.Random(name)
    prompt = [rng.randrange(FIRST_ORDINARY_ID, VOCAB) for _ in range(length)]
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, seed=0)
    core.add(NewRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, arrival_s=time.monotonic()))


def gaps_while(core: EngineCore, until: str) -> tuple[list[float], float]:
    """Gaps between tokens of each chat until request `until` gets its first token; and how long that was. Seconds."""
    last: dict[str, float] = {}
    gaps: list[float] = []
    started_s = time.monotonic()
    while True:
        outputs = core.step()
        now_s = time.monotonic()
        for output in outputs:
            if output.request_id == until:
                return gaps, now_s - started_s
            if output.request_id in last:
                gaps.append(now_s - last[output.request_id])
            last[output.request_id] = now_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 128, 256, 512])
    args = parser.parse_args()
    checkpoint = open_checkpoint(resolve("smollm2-135m"))
    print("| token budget | chats alone: ITL p50 ms | beside a 4,000-token prompt: p50 | p99 | long prompt's TTFT s |")
    print("|---|---|---|---|---|")
    for budget in args.budgets:
        config = EngineConfig(max_num_batched_tokens=budget, enable_prefix_caching=False, dtype="bfloat16")
        core = build_engine(config, checkpoint, SystemClock()).core
        for number in range(NUM_CHATS):
            add(core, f"chat{number}", CHAT_PROMPT, 4000)
        # All prompts computed, and a few steps more, before anything is measured.
        while any(r.num_output_tokens < 10 for r in core.scheduler.unfinished()):
            core.step()
        alone: list[float] = []
        for _ in range(60):
            started_s = time.monotonic()
            core.step()
            alone.append(time.monotonic() - started_s)
        add(core, "long", LONG_PROMPT, 1)
        beside, ttft_s = gaps_while(core, "long")
        p99 = sorted(beside)[int(0.99 * (len(beside) - 1))]
        figures = [f"{1e3 * s:.1f}" for s in (statistics.median(alone), statistics.median(beside), p99)]
        print(f"| {budget} | {' | '.join(figures)} | {ttft_s:.2f} |")


if __name__ == "__main__":
    main()
