"""What is kept of one request: the moments, the tokens, and how it ended. All times in seconds of the run's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "error", "incomplete"]
"""`incomplete`: we stopped listening (the run's end, or a client that leaves); neither served nor failed."""


@dataclass(slots=True)
class Record:
    """Filled in while the answer comes."""

    due_s: float
    """When it should have been sent."""
    wanted_input_tokens: int
    max_tokens: int
    sent_s: float = 0.0
    first_s: float | None = None
    """First token of any kind, reasoning included. A chunk with a role or an empty text is none."""
    first_content_s: float | None = None
    """First token of the answer proper."""
    last_s: float = 0.0
    """Last token: the end of generation. A later chunk with usage only doesn't count."""
    end_s: float = 0.0
    """Last byte."""
    chunks: list[float] = field(default_factory=list)
    """When each chunk with a token came."""
    status: Status = "incomplete"
    problem: str = ""
    prompt_tokens: int | None = None
    """As the endpoint counted; None where it reported no usage."""
    cached_tokens: int = 0
    completion_tokens: int | None = None
    finish_reason: str | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    text: str = ""
    """Kept only where a later turn needs it."""
    phase: int = 0

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def lateness_s(self) -> float:
        """The generator's own delay."""
        return max(0.0, self.sent_s - self.due_s)

    @property
    def output_tokens(self) -> int:
        """Usage where there is one, else the chunks that came."""
        return len(self.chunks) if self.completion_tokens is None else self.completion_tokens

    @property
    def input_tokens(self) -> int:
        return self.wanted_input_tokens if self.prompt_tokens is None else self.prompt_tokens

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def first_content_after_s(self) -> float | None:
        return None if self.first_content_s is None else self.first_content_s - self.sent_s

    @property
    def e2el_s(self) -> float:
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time for each token after the first; None where there is no second."""
        if self.first_s is None or self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    @property
    def chunk_gaps_s(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.chunks, self.chunks[1:], strict=False)]

    @property
    def tokens_per_chunk(self) -> float:
        """Above 1 where the server sends several tokens at once. Never below: an end may be a token without text."""
        return max(1.0, self.output_tokens / len(self.chunks)) if self.chunks else 1.0
