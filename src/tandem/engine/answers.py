"""One of the n answers to a prompt, from the engine's tokens to pieces of text with what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.core.errors import EngineFailed
from tandem.core.sampling_params import SamplingParams
from tandem.core.types import FinishReason
from tandem.engine.messages import Output, RequestUsage, TokenLogprobs


class TextDelta(Protocol):
    """What some tokens brought."""

    @property
    def text(self) -> str:
        """What is certain now and was not returned before."""
        ...

    @property
    def stop(self) -> str | None:
        """The stop string that one of these tokens completed; nothing comes after it."""
        ...

    @property
    def num_tokens_used(self) -> int:
        """How many of them belong to the answer: up to the one that completed the stop string."""
        ...


class TextStream(Protocol):
    """One answer's tokens becoming text. Holds back what may be half a character or the beginning of a stop string."""

    def push(self, token_ids: Sequence[int]) -> TextDelta: ...

    def finish(self) -> str:
        """The rest, once no token will follow; "" after a stop string. Half a character comes as U+FFFD, once."""
        ...


@dataclass(slots=True)
class Piece:
    """What one output adds to an answer. The text may be empty: held back, or there was none."""

    index: int
    """The choice's index in the client's answer."""
    text: str
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    is_first: bool = False

    @property
    def has_content(self) -> bool:
        """Whether a stream has to say anything."""
        return bool(self.text or self.is_first or self.finish_reason is not None or self.logprobs)


class Answer:
    """Follows one answer's text, end and cost."""

    __slots__ = (
        "_includes_stop",
        "_stream",
        "finish_reason",
        "index",
        "last_token_s",
        "num_tokens",
        "num_wasted_tokens",
        "usage",
    )

    def __init__(self, index: int, stream: TextStream, sampling: SamplingParams) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.num_tokens = 0
        self.num_wasted_tokens = 0
        """Received although the text had ended before them."""
        self.last_token_s: float | None = None
        self.usage: RequestUsage | None = None
        self._stream = stream
        self._includes_stop = sampling.include_stop_str_in_output

    def take(self, output: Output, now_s: float) -> Piece | None:
        """The next piece; None for an output after the end. Raises `EngineFailed` if the engine failed it."""
        if self.finish_reason is not None:
            self.num_wasted_tokens += len(output.token_ids)
            return None
        if output.finish_reason in ("error", "abort"):
            raise EngineFailed(output.error or "The engine dropped the request before it was finished.")
        is_first = self.last_token_s is None
        self.last_token_s = now_s
        piece = self._piece(output)
        piece.is_first = is_first
        self.finish_reason = piece.finish_reason
        self.usage = output.usage
        return piece

    def _piece(self, output: Output) -> Piece:
        shown = output.token_ids
        if shown and self._ends_with_stop_token(output):
            shown = shown[:-1]
        delta = self._stream.push(shown)
        if delta.stop is not None:
            return self._stopped_piece(output, delta)
        text = delta.text if output.finish_reason is None else delta.text + self._stream.finish()
        self.num_tokens += len(output.token_ids)
        return Piece(self.index, text, output.logprobs, output.finish_reason, output.stop_reason)

    def _stopped_piece(self, output: Output, delta: TextDelta) -> Piece:
        """The engine finds stop strings too, at the same token; should it not, the answer ends here all the same."""
        num_used = delta.num_tokens_used
        self.num_tokens += num_used
        self.num_wasted_tokens += len(output.token_ids) - num_used
        logprobs = None if output.logprobs is None else output.logprobs[:num_used]
        return Piece(self.index, delta.text, logprobs, "stop", delta.stop)

    def _ends_with_stop_token(self, output: Output) -> bool:
        """A token that ended the answer is no part of its text: an end-of-sequence, or one of `stop_token_ids`."""
        by_token = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
        return by_token and not self._includes_stop
