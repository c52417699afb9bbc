"""Two replicas at the same request: whoever answers first wins, the other is cancelled at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandem.gateway.forwarding import Attempt, AttemptFailed


async def race(
    first: Attempt, second: Callable[[], Attempt | None], after_s: float, failed: Callable[[AttemptFailed], None]
) -> Attempt:
    """The attempt that has begun to answer. `second` is asked for another one if the first hasn't within `after_s`.
    Raises the last one's `AttemptFailed` when none answers; `failed` is told of the others'. Closes all but the winner.
    """
    running = {asyncio.ensure_future(first.begin()): first}
    try:
        done, _ = await asyncio.wait(running, timeout=after_s)
        if not done and (other := second()) is not None:
            running[asyncio.ensure_future(other.begin())] = other
        while True:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                attempt = running.pop(task)
                failure = task.exception()
                if failure is None:
                    return attempt
                attempt.close()
                if not running or not isinstance(failure, AttemptFailed):
                    raise failure
                failed(failure)
    finally:
        for task, attempt in running.items():
            task.cancel()
            attempt.close()
        await asyncio.gather(*running, return_exceptions=True)
