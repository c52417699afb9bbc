"""One measurement from settings: reach the endpoint, calibrate, warm up, run, and keep what happened.

The way in for programs: `asyncio.run(measure(["http://127.0.0.1:8000"], LoadSettings(rate=2.0), TargetSettings()))`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from tandem.core.clock import Clock, SystemClock
from tandem.loadtest import preflight
from tandem.loadtest.bodies import Bodies
from tandem.loadtest.client import Client
from tandem.loadtest.endpoint import parse_endpoint
from tandem.loadtest.errors import LoadTestError, WrongTarget
from tandem.loadtest.record import Record
from tandem.loadtest.runner import Load, run
from tandem.loadtest.sender import Patience, Sender
from tandem.loadtest.settings import LoadSettings, TargetSettings
from tandem.loadtest.workload import make_conversations, make_load
from tandem.traffic.text import Ratio, TextMaker

Watch = Callable[[Sender, Load], contextlib.AbstractAsyncContextManager[None]]
"""Around a run: shows its progress, or takes samples."""


@dataclass(slots=True)
class Run:
    """What happened in one run."""

    settings: LoadSettings
    records: list[Record]
    is_partial: bool = False
    """It was interrupted."""
    cpu_share: float = 0.0
    """Of one core, used by the generator itself."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Target:
    """An endpoint that was reached, and all that is needed to send to it."""

    client: Client
    bodies: Bodies
    model: str
    ratio: Ratio
    is_streamed: bool
    notes: list[str]


@contextlib.asynccontextmanager
async def reached(
    urls: Sequence[str], target: TargetSettings, api_keys: Sequence[str] = (), *, patience_s: float = 120.0
) -> AsyncIterator[Target]:
    """Raises `Unreachable`, `WrongTarget`. Keys go round with the addresses. `patience_s`: for the first questions."""
    pairs = max(len(urls), len(api_keys)) if urls else 0
    keys: list[str | None] = list(api_keys) or [None]
    client = Client([parse_endpoint(urls[i % len(urls)], keys[i % len(keys)]) for i in range(pairs)])
    try:
        yield await _reach_within(client, target, patience_s)
    finally:
        client.close()


async def _reach_within(client: Client, target: TargetSettings, patience_s: float) -> Target:
    try:
        async with asyncio.timeout(patience_s):
            return await _reach(client, target)
    except TimeoutError:
        raise WrongTarget(f"{client.endpoints[0].url} gave no whole answer within {patience_s:g} s.") from None


async def _reach(client: Client, target: TargetSettings) -> Target:
    model = await preflight.find_model(client, target.model)
    await preflight.reach_all(client)
    notes: list[str] = []
    ignore_eos = await preflight.takes_ignore_eos(client, target, model)
    if target.ignore_eos and not ignore_eos:
        notes.append("The endpoint refuses ignore_eos: answers may be shorter than wanted.")
    ratio = await preflight.measure_ratio(client, target, model, ignore_eos=ignore_eos)
    if ratio is None:
        notes.append("The endpoint counts no tokens: prompt lengths are words, output tokens are chunks.")
    bodies = Bodies(target, model, ignore_eos=ignore_eos)
    return Target(client, bodies, model, ratio or Ratio(), target.stream, notes)


@contextlib.asynccontextmanager
async def unwatched(sender: Sender, load: Load) -> AsyncIterator[None]:
    """Shows nothing."""
    yield


async def measure_once(
    target: Target,
    settings: LoadSettings,
    *,
    stop: asyncio.Event | None = None,
    watch: Watch = unwatched,
    load: Load | None = None,
    clock: Clock | None = None,
) -> Run:
    """One run. `stop` set: it ends now and comes back as partial. `load`: instead of the settings' own."""
    load = load or make_load(settings, TextMaker(settings.seed, target.ratio))
    patience = Patience(settings.timeout, settings.silence, settings.abort_after)
    sender = Sender(target.client, target.bodies, patience, clock or SystemClock(), is_streamed=target.is_streamed)
    began_s, cpu_s = time.monotonic(), time.process_time()
    async with watch(sender, load):
        is_partial = await _until(asyncio.create_task(run(load, sender)), stop)
    share = (time.process_time() - cpu_s) / max(1e-9, time.monotonic() - began_s)
    if not sender.records and not is_partial:
        raise LoadTestError(
            "no request was sent: the duration ended before the first arrival, or the dataset is empty."
        )
    notes = ["The load generator used over 90 % of a core: the figures may be its own."] if share > 0.9 else []
    return Run(settings, sender.records, is_partial, share, notes)


async def warm_up(target: Target, settings: LoadSettings) -> None:
    """Requests that nobody counts, with prompts of their own. Raises `WrongTarget` if all fail."""
    if settings.warmup == 0:
        return
    text = TextMaker(settings.seed + 1_000_003, target.ratio)
    made = make_conversations(settings, text)
    sender = Sender(target.client, target.bodies, Patience(settings.timeout, settings.silence), SystemClock(),
                    is_streamed=target.is_streamed)  # fmt: skip
    conversations = [c for c, _ in zip(made, range(settings.warmup), strict=False)]
    await run(Load(conversations, concurrency=min(8, settings.warmup)), sender)
    if not any(record.is_ok for record in sender.records):
        raise WrongTarget(f"the warm-up failed: {sender.records[0].problem or 'no answer'}.")


async def measure(
    urls: Sequence[str],
    settings: LoadSettings,
    target: TargetSettings,
    *,
    api_keys: Sequence[str] = (),
    stop: asyncio.Event | None = None,
    watch: Watch = unwatched,
) -> Run:
    """Everything for one run."""
    async with reached(urls, target, api_keys) as found:
        await warm_up(found, settings)
        done = await measure_once(found, settings, stop=stop, watch=watch)
        done.notes[:0] = found.notes
        return done


async def _until(task: asyncio.Task[None], stop: asyncio.Event | None) -> bool:
    """Waits for the task; True if it was stopped instead."""
    if stop is None:
        await task
        return False
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if is_stopped := not task.done():
            task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return is_stopped
