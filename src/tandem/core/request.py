"""One generation, as the scheduler sees it: known tokens, computed tokens, and where its KV lies.

It knows no text and no tensors. Who may change what: the scheduler changes status and counts, `KVCacheManager` alone
changes `block_tables`, and everything else is fixed when the request is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from tandem.core.sampling_params import SamplingParams
from tandem.core.types import BlockHash, BlockId, FinishReason, ServiceClass


class RequestStatus(Enum):
    """WAITING → RUNNING → FINISHED, with RUNNING → WAITING when preempted."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class StopWatch(Protocol):
    """Follows a request's text, so that a stop string ends it at the very token that completes it."""

    def push(self, token_ids: Sequence[int]) -> str | None:
        """The stop string that these tokens completed, if any."""
        ...


class Rank(NamedTuple):
    """The order in which requests are served: lower priority value, then earlier arrival, then order of admission."""

    priority: int
    arrival_s: float
    serial: int


@dataclass(slots=True, eq=False)
class Request:
    """Compared and hashed by identity. Times in seconds of the engine's clock."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    rank: Rank
    index: int = 0
    """Which of the n answers this is. The n answers run as one request until the prompt is computed, then fork."""
    service_class: ServiceClass = "interactive"
    cache_salt: str | None = None
    eos_token_ids: frozenset[int] = frozenset()
    max_tokens: int = 0
    """Most output tokens, resolved: the request's own limit or what the context leaves."""
    stop_watch: StopWatch | None = None

    token_ids: list[int] = field(default_factory=list)
    """All known tokens: the prompt, then what was generated."""
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_computed_tokens: int = 0
    """Tokens whose KV is present."""
    num_cached_tokens: int = 0
    """Of the prompt, found in the prefix cache when the request first got a seat."""
    block_tables: tuple[list[BlockId], ...] = ()
    """By layer group: physical blocks in order; NULL_BLOCK where a window has moved past."""
    table_version: int = 0
    """Raised when an entry of a table was replaced, rather than appended."""
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Of the full blocks of known tokens, as far as computed."""
    num_registered_blocks: int = 0
    """Full blocks already offered to the prefix cache."""

    num_preemptions: int = 0
    first_seat_s: float | None = None
    first_token_s: float | None = None
    engine_s: float = 0.0
    kv_block_s: float = 0.0
    num_wasted_tokens: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_seats(self) -> int:
        """Sequences it will run as: n until the fork, then one each."""
        return self.sampling.n if self.index == 0 and self.num_output_tokens == 0 else 1

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED
