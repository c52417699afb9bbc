"""Goals: bounds on a request's times, written `ttft:200 tpot:50 e2el:5000` in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.core.errors import ConfigError
from tandem.loadtest.record import Record

HOLDING_SHARE = 0.9
"""Goals hold where so many of all requests that were sent meet every bound (DistServe's definition)."""

Goals = dict[str, float]
"""Name → milliseconds."""


def parse_goals(texts: Sequence[str]) -> Goals:
    """Raises `ConfigError`."""
    goals: Goals = {}
    for text in (part for entry in texts for part in entry.replace(",", " ").split()):
        name, _, value = text.partition(":")
        try:
            bound = float(value)
        except ValueError:
            bound = 0.0
        if name not in ("ttft", "tpot", "e2el") or not bound > 0:
            raise ConfigError(f"{text!r} is no goal; goals are ttft:MS, tpot:MS and e2el:MS, such as ttft:200 tpot:50.")
        goals[name] = bound
    return goals


def meets(record: Record, goals: Goals) -> bool:
    """Failed and unfinished requests meet none. A time that doesn't exist (one token has no TPOT) breaks none."""
    if not record.is_ok:
        return False
    times = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2el": record.e2el_s}
    return all((time_s := times[name]) is None or time_s * 1000 <= bound for name, bound in goals.items())


def share_meeting(records: Iterable[Record], goals: Goals) -> float:
    """Of all that were sent; 0 where none was."""
    met = [meets(record, goals) for record in records]
    return sum(met) / len(met) if met else 0.0
