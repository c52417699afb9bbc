"""How one request wants its tokens chosen and when it wants to stop. Names and meanings are vLLM's and OpenAI's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.core.errors import InvalidRequest

MAX_LOGPROBS = 20
"""Most alternatives by token, OpenAI's limit for `top_logprobs`."""
MAX_N = 128
"""OpenAI's limit for `n`."""
MAX_STOP_STRINGS = 64
"""More stop strings than this are a mistake or an attack: each is looked for after every token."""
MAX_STOP_STRING_CHARS = 1024
SEED_LIMIT = 1 << 63
MAX_COUNT = (1 << 31) - 1
"""Largest token count or rank that means anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Frozen: a request's parameters never change once accepted. Raises `InvalidRequest` naming the field."""

    n: int = 1
    """Independent answers to one prompt; they share the prompt's KV."""
    temperature: float = 1.0
    """0 is greedy. Below 1e-5 counts as 0: dividing by it would overflow and change nothing else."""
    top_p: float = 1.0
    """Smallest set of tokens whose probabilities reach this; 1 keeps all."""
    top_k: int = 0
    """Keep the k likeliest; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest one's probability."""
    seed: int | None = None
    """Reproduces the random numbers whatever else runs in the batch. None: drawn for the request."""
    presence_penalty: float = 0.0
    """Subtracted once from every token already generated (output only)."""
    frequency_penalty: float = 0.0
    """Subtracted for each time a token was generated (output only)."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """token id → added to its logit; -100 bans, 100 forces."""
    logprobs: int | None = None
    """Alternatives reported by generated token; 0 reports the chosen token only, None nothing."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens. Such a request doesn't read the prefix cache."""
    stop: tuple[str, ...] = ()
    """Generation ends when one of these appears in the text; the text is cut before it."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends when one of these is sampled."""
    include_stop_str_in_output: bool = False
    max_tokens: int | None = 16
    """Most tokens to generate; None: as many as the context holds. 0 computes the prompt only."""
    min_tokens: int = 0
    """No end-of-sequence or stop token, and no stop string, before this many tokens."""
    ignore_eos: bool = False
    """Go on past end-of-sequence tokens (all of them)."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        # vLLM takes a single text and lists here; frozen, they become tuples once.
        object.__setattr__(self, "stop", _as_tuple("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequest(
                f"logit_bias must map token ids to numbers, not {self.logit_bias!r:.60}.", param="logit_bias"
            )
        _whole("n", self.n, 1, MAX_N)
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, above=True)
        _whole("top_k", self.top_k, -1, MAX_COUNT)
        _real("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _whole("seed", self.seed, -SEED_LIMIT, SEED_LIMIT - 1)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        for token_id, bias in self.logit_bias.items():
            _whole("logit_bias", token_id, 0, MAX_COUNT)
            _real("logit_bias", bias, -100.0, 100.0)
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                _whole(name, value, 0, MAX_LOGPROBS)
        _check_stop_strings(self.stop)
        for token_id in self.stop_token_ids:
            _whole("stop_token_ids", token_id, 0, MAX_COUNT)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, MAX_COUNT)
        _whole("min_tokens", self.min_tokens, 0, MAX_COUNT)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}; it must not be larger.",
                param="min_tokens",
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def needs_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1.0


def _as_tuple(name: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} must be a list, not {value!r:.60}.", param=name)
    return tuple(value)


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number, not {value!r}.", param=name)
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequest(f"{name} is {value}; it must be {allowed}.", param=name)


def _real(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a finite number, not {value!r}.", param=name)
    if value > high or value < low or (above and value == low):
        allowed = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise InvalidRequest(f"{name} is {value:g}; it must be {allowed}.", param=name)


def _check_stop_strings(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"{len(stop)} stop strings were given; at most {MAX_STOP_STRINGS} are allowed.", param="stop"
        )
    for text in stop:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequest(
                f"a stop string must have 1 to {MAX_STOP_STRING_CHARS} characters; {text!r:.60} was given.",
                param="stop",
            )
