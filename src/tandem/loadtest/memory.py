"""How much memory a server holds, from outside: of a process and its children, or from its own `/metrics`."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from tandem.loadtest.client import Client
from tandem.loadtest.errors import LoadTestError, Unreachable

Probe = Callable[[], Awaitable[float | None]]
"""Bytes held now; None where it can't be told."""
_METRIC = re.compile(rb"^process_resident_memory_bytes(?:\{[^}]*\})?\s+([0-9.eE+]+)", re.MULTILINE)


def process_probe(pid: int) -> Probe:
    """Raises `LoadTestError` where there is no such process."""
    if resident_bytes(pid) is None:
        raise LoadTestError(f"there is no process {pid} whose memory could be watched.")

    async def probe() -> float | None:
        return resident_bytes(pid)

    return probe


def metrics_probe(client: Client) -> Probe:
    """Summed over the endpoints."""

    async def probe() -> float | None:
        total = 0.0
        for index in range(len(client.endpoints)):
            try:
                status, body = await client.fetch("GET", "/metrics", endpoint=index)
            except Unreachable:
                return None
            found = _METRIC.findall(body) if status == 200 else []
            if not found:
                return None
            total += sum(map(float, found))
        return total

    return probe


def resident_bytes(pid: int) -> float | None:
    """Of a process and all its descendants; None where it is gone."""
    if not Path(f"/proc/{pid}/statm").exists():
        return None
    return float(sum(_own_bytes(member) for member in _family(pid)))


def _family(pid: int) -> list[int]:
    found = [pid]
    for member in found:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text().split()]
            except OSError:  # the thread has just ended
                continue
    return found


def _own_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
