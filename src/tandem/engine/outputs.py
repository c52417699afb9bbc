"""What offline generation returns. Names are vLLM's, so that scripts written for it go on working."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.core.types import FinishReason
from tandem.engine.messages import RequestUsage, TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    """One for each of `token_ids`, if asked for."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it."""
    usage: RequestUsage | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(slots=True)
class RequestOutput:
    """All answers to one prompt."""

    request_id: str
    prompt: str | None
    """None where the prompt was given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @property
    def finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        usage = self.outputs[0].usage
        return usage.num_cached_tokens if usage else 0
