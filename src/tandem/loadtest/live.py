"""What a person sees while a test runs: one line on a terminal, refreshed; nothing in a log or a pipe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tandem.loadtest.bench import Watch
from tandem.loadtest.runner import Load
from tandem.loadtest.sender import Sender
from tandem.loadtest.statistics import percentile

_EVERY_S = 0.25
_RECENT_S = 5.0


def progress_line(sender: Sender, label: str) -> str:
    """Counts of the whole run; speeds of the last five seconds. Looks at recent records only: a run may be long."""
    now_s = sender.now()
    recent = []
    for record in reversed(sender.records):
        if record.sent_s < now_s - 4 * _RECENT_S:
            break
        recent.append(record)
    span_s = max(1e-9, min(_RECENT_S, now_s))
    ended = [r for r in recent if r.status != "incomplete" and r.end_s > now_s - _RECENT_S]
    tokens = sum(sum(at_s > now_s - _RECENT_S for at_s in r.chunks[-2000:]) for r in recent)
    ttfts = sorted(r.ttft_s * 1000 for r in ended if r.ttft_s is not None)
    failed = sum(r.status == "error" for r in ended)
    shown = f"TTFT p50 {percentile(ttfts, 50):.0f} p99 {percentile(ttfts, 99):.0f} ms" if ttfts else "no answer yet"
    return (
        f"{label} {now_s:5.0f} s  sent {len(sender.records)}  open {sender.num_open}  "
        f"{len(ended) / span_s:.1f} req/s  {tokens / span_s:.0f} tok/s  {shown}"
        + (f"  failing {failed}" if failed else "")
    )


def live_watch(console: Console) -> Watch:
    """A watch for `measure_once`."""

    @contextlib.asynccontextmanager
    async def watch(sender: Sender, load: Load) -> AsyncIterator[None]:
        label = "rate" if load.offsets is not None else f"concurrency {load.concurrency}"
        if not console.is_terminal:
            yield
            return
        with Live(console=console, auto_refresh=False, transient=True) as live:
            task = asyncio.create_task(_refresh(live, sender, label))
            try:
                yield
            finally:
                task.cancel()

    return watch


async def _refresh(live: Live, sender: Sender, label: str) -> None:
    while True:
        live.update(Text(progress_line(sender, label), overflow="ellipsis", no_wrap=True), refresh=True)
        await asyncio.sleep(_EVERY_S)
