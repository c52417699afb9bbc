from __future__ import annotations

import inspect

import pytest

from tandem.core import errors
from tandem.core.errors import TandemError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TandemError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_drawn_in_the_tree_and_documented(kind: type[TandemError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__
    assert 400 <= kind.status < 600


def test_messages_are_whole() -> None:
    error = errors.Overloaded("The queue is full.", retry_after_s=3.0)
    assert (str(error), error.message, error.status, error.retry_after_s) == (*["The queue is full."] * 2, 429, 3.0)
