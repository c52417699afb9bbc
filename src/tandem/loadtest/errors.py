"""What can go wrong before there is anything to measure.

LoadTestError
├── Unreachable      nobody answers at the address
└── WrongTarget      it answers, but not as asked: wrong model, wrong key, no such API
"""

from __future__ import annotations

from tandem.core.errors import TandemError


class LoadTestError(TandemError):
    """The test can't be done."""


class Unreachable(LoadTestError):
    """Nobody answers at the address."""


class WrongTarget(LoadTestError):
    """The endpoint answers, but can't serve these requests."""
