"""Typed look-ups in what a model says about itself: config.json, or the metadata of a GGUF.

Knows neither format; a missing or ill-typed value is a `ModelDamaged` that names the file and the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tandem.core.errors import ModelDamaged


class Values:
    """A mapping from an untrusted file. JSON's null counts as absent."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.raw = values
        self.source = source
        """The file, as it should be named in an error."""

    def __contains__(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def get(self, key: str) -> Any:
        return self.raw.get(key)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; `default` where the key is absent."""
        value = self._or_default(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._wrong(key, value, f"a whole number of at least {minimum}")
        return value

    def optional_integer(self, key: str, *, minimum: int = 1) -> int | None:
        return self.integer(key, minimum=minimum) if key in self else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero; `default` where the key is absent."""
        value = self._or_default(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise self._wrong(key, value, "a number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._or_default(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._or_default(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def section(self, key: str) -> Values:
        """A nested mapping; an empty one where the key is absent."""
        value = self._or_default(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a mapping")
        return Values(value, f"{self.source}, {key}")

    def _or_default(self, key: str, default: Any) -> Any:
        value = self.raw.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelDamaged(f"{self.source}: {key} is missing.")
        return default

    def _wrong(self, key: str, value: object, wanted: str) -> ModelDamaged:
        shown = repr(value)
        return ModelDamaged(f"{self.source}: {key} is {shown[:80]}; it must be {wanted}.")
