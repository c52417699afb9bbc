"""How many short answers a second does the load generator send and read on one core?

    python -m tests.loadtest.bench_generator [--rate 2000] [--seconds 10]

The server is a process of its own on the other core; each answer is a stream of eight tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
from multiprocessing.connection import Connection

import uvloop

from tandem.loadtest.bench import measure
from tandem.loadtest.report import text_report
from tandem.loadtest.settings import LoadSettings, TargetSettings
from tandem.loadtest.summary import summarise
from tests.loadtest.fake_server import FakeServer, streamed


def serve(told: Connection) -> None:
    async def forever() -> None:
        async with FakeServer(streamed()) as server:
            told.send(server.url)
            await asyncio.Event().wait()

    uvloop.run(forever())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    settings = LoadSettings(
        rate=args.rate, concurrency=args.concurrency, duration=args.seconds, input_len="16", output_len="8"
    )
    run = uvloop.run(measure([here.recv()], settings, TargetSettings()))
    server.terminate()
    summary = summarise(run.records, rate=args.rate, max_concurrency=args.concurrency, is_open=settings.is_open)
    print(text_report(summary, run.notes))
    per_request_us = run.cpu_share * summary.duration_s / summary.total * 1e6
    print(f"generator: {run.cpu_share:.0%} of a core, {per_request_us:.0f} µs of CPU a request")


if __name__ == "__main__":
    main()
