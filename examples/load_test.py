"""Measure an endpoint from a program: two rates, and whether the goals hold at each.

Start `tandem serve` first; then run: .venv/bin/python examples/load_test.py
The same from the command line: tandem bench http://127.0.0.1:8000 --sweep 1,2 --duration 10 --goodput ttft:500 tpot:50
"""

from __future__ import annotations

import asyncio
import os

from tandem.loadtest.bench import measure
from tandem.loadtest.saturation import judge
from tandem.loadtest.settings import LoadSettings, TargetSettings
from tandem.loadtest.summary import summarise

GOALS = {"ttft": 500.0, "tpot": 50.0}


async def main() -> None:
    url = os.environ.get("TANDEM_URL", "http://127.0.0.1:8000")
    key = os.environ.get("TANDEM_API_KEY")
    for rate in (1.0, 2.0):
        load = LoadSettings(rate=rate, duration=10.0, input_len="64:192", output_len="32", seed=round(rate))
        run = await measure([url], load, TargetSettings(), api_keys=[key] if key else [])
        summary = summarise(run.records, goals=GOALS, rate=rate, is_open=True)
        verdict = judge(run.records, GOALS)
        ttft_ms = summary.ttft_ms.median if summary.ttft_ms else float("nan")
        print(f"{rate:g} requests/s: {summary.output_throughput:.1f} tok/s, median TTFT {ttft_ms:.0f} ms, "
              f"goodput {summary.goodput:.2f} req/s, {'holds' if verdict.holds else verdict.why}")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
