"""Traces for the modelled fleet: from the shared data where it lies, or drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.gateway.routing.fleet import Arrival

DATA = Path(__file__).parents[4] / "shared" / "data"


def azure_conversation(count: int, *, seconds_per_second: float = 1.0) -> list[Arrival]:
    """The first `count` requests of the Azure conversation trace (CC-BY 4.0, Azure Public Dataset; Splitwise, 2024).

    `seconds_per_second` > 1 squeezes the time: more load.
    """
    rows = _lines("azure_llm_2023_conv.csv")[1 : count + 1]
    start: datetime | None = None
    arrivals = []
    for row in rows:
        when, prompt, output = row.split(",")
        time = datetime.fromisoformat(when[:26])
        start = start or time
        seconds = (time - start).total_seconds() / seconds_per_second
        arrivals.append(Arrival(seconds, int(prompt), max(1, int(output))))
    return arrivals


def mooncake(count: int, *, seconds_per_second: float = 1.0, shrink: int = 8) -> list[Arrival]:
    """The first `count` of Mooncake's conversation trace (Apache 2.0; FAST '25), with its shared prefixes.

    `shrink` divides prompt lengths: the originals are of 12,000 tokens, for larger engines than the ones modelled.
    """
    arrivals = []
    for line in _lines("mooncake_conversation.jsonl")[:count]:
        row = json.loads(line)
        hashes = tuple(int(number).to_bytes(4, "big") for number in row["hash_ids"])
        seconds = row["timestamp"] / 1000.0 / seconds_per_second
        arrivals.append(
            Arrival(seconds, max(1, row["input_length"] // shrink), max(1, row["output_length"]), hashes=hashes)
        )
    return arrivals


def with_batch(arrivals: Iterable[Arrival], share: float, seed: int = 0) -> list[Arrival]:
    """The same, of which a share is batch work."""
    rng = random.Random(seed)
    return [replace(a, service_class="batch") if rng.random() < share else a for a in arrivals]


def hot_prefixes(count: int, rate: float, *, num_prefixes: int, hot_share: float, seed: int = 0) -> list[Arrival]:
    """Poisson arrivals of prompts of 8 chunks, of which 6 are one of a few shared beginnings; one of them is hot."""
    rng = random.Random(seed)
    arrivals, now_s = [], 0.0
    for number in range(count):
        now_s += rng.expovariate(rate)
        which = 0 if rng.random() < hot_share else rng.randrange(1, num_prefixes)
        head = [f"{which}.{i}".encode() for i in range(6)]
        tail = [f"{which}.{number}.{i}".encode() for i in (6, 7)]
        arrivals.append(Arrival(now_s, 1024, rng.randint(20, 120), hashes=(*head, *tail), session=str(which)))
    return arrivals


def _lines(name: str) -> list[str]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there: this test reads a public trace that the project doesn't carry")
    return path.read_text().splitlines()
