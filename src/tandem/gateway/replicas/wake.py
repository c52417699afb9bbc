"""Putting an engine to sleep and waking it: the process stays, its device's memory is free for another model."""

from __future__ import annotations

import asyncio

import msgspec

from tandem.core.errors import Unavailable
from tandem.gateway.replicas.base import Call, Fetch
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.upstream.failures import UpstreamFailure


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


async def sleep(replica: Replica, fetch: Fetch, timeout_s: float = 60.0) -> bool:
    """Whether it sleeps now; False: this kind can't. The caller drains it first. Raises `Unavailable`."""
    call = replica.adapter.sleep_call()
    if call is None:
        return False
    replica.is_asleep = True  # before the call: no probe may ask it for a token meanwhile
    try:
        await _order(replica, fetch, call, timeout_s)
    except Unavailable:
        replica.is_asleep = False
        raise
    return True


async def wake(replica: Replica, fetch: Fetch, timeout_s: float = 300.0) -> bool:
    """Returns when the engine says it is awake; False: this kind never sleeps. Raises `Unavailable`."""
    call = replica.adapter.wake_call()
    if call is None:
        return False
    await _order(replica, fetch, call, timeout_s)
    replica.is_asleep = False
    return True


async def is_asleep(replica: Replica, fetch: Fetch, timeout_s: float = 5.0) -> bool | None:
    """What the engine itself says; None: it doesn't."""
    call = replica.adapter.asleep_call()
    if call is None:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await fetch(replica, *call, timeout_s)
        return msgspec.json.decode(body, type=_Sleeping).is_sleeping if status == 200 else None
    except (TimeoutError, OSError, UpstreamFailure, msgspec.DecodeError):
        return None


async def _order(replica: Replica, fetch: Fetch, call: Call, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await fetch(replica, *call, timeout_s)
    except (TimeoutError, OSError, UpstreamFailure) as error:
        raise Unavailable(f"Replica {replica.id} did not obey {call.path}: {error or 'no answer in time'}.") from error
    if not 200 <= status < 300:
        said = replica.adapter.error(status, body).message
        raise Unavailable(f"Replica {replica.id} refused {call.path} with status {status}: {said}")
