"""How much a template may compute: time, and characters made. Knows neither filters nor chats.

Every step of a template that takes time or makes something pays for it here, before it is done where its price can be
told. No thread and no signal is needed to stop one that runs on: it stops itself at its next step.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.utils import Namespace

STEP_UNITS = 64
"""The price of a turn of a loop, a call, an element of a list: about what they take in bytes."""
MAX_INT_BITS = 16_384
"""Python's whole numbers have no limit; arithmetic on millions of digits can't be interrupted."""
_QUOTED = 4
"""Quoting and escaping can lengthen a text so many times, at the worst that is worth expecting."""


class TooCostly(Exception):
    """The template has used up its time, or made too much."""


class Budget:
    """What one rendering has left. A unit is about a character."""

    __slots__ = ("_deadline_s", "_time_limit_s", "_units_left")

    def __init__(self, time_limit_s: float, num_units: int) -> None:
        self._time_limit_s = time_limit_s
        self._deadline_s = time.monotonic() + time_limit_s
        self._units_left = num_units

    def spend(self, num_units: int) -> None:
        """Raises `TooCostly` when nothing is left."""
        self._units_left -= num_units
        if self._units_left < 0:
            raise TooCostly("it makes or repeats too much text")
        if time.monotonic() > self._deadline_s:
            raise TooCostly(f"it takes longer than {self._time_limit_s:g} s")


_current: ContextVar[Budget] = ContextVar("template_budget")


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Within this block, the functions below draw on this budget."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)


def spend(num_units: int = STEP_UNITS) -> None:
    """For a step, or for what is about to be made."""
    _current.get().spend(num_units)


def spend_result(value: Any) -> None:
    """For something that has just been made."""
    if isinstance(value, str):
        spend(len(value))
    elif isinstance(value, int):
        check_bits(value.bit_length())
    elif isinstance(value, list | tuple | Mapping):
        spend(8 * len(value))


def spend_text(value: Any) -> None:
    """For the text that `str(value)` would make. A few lists that hold one another can stand for terabytes."""
    if isinstance(value, str):
        spend(len(value))
        return
    budget, waiting = _current.get(), [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, str):
            budget.spend(_QUOTED * len(inner) + 1)
        elif isinstance(inner, Mapping):
            budget.spend(2 * STEP_UNITS * len(inner))
            waiting += [*inner.keys(), *inner.values()]
        elif isinstance(inner, Sequence | Set | KeysView | ValuesView | ItemsView):
            budget.spend(STEP_UNITS * len(inner))
            waiting += inner
        elif isinstance(inner, Namespace):
            raise TooCostly("it writes out a namespace")  # nobody means to, and what is in it can't be looked at


def check_bits(num_bits: int) -> None:
    """For a whole number of so many bits."""
    if num_bits > MAX_INT_BITS:
        raise TooCostly("it computes with too large a number")
