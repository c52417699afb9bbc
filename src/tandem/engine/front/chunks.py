"""The bytes of a stream's events. This is the hot path: most chunks only carry text.

All of a chunk but its text is the same from one to the next, so it is encoded once for each choice; a chunk is then one
JSON string between two constants. What is rarer (a finish reason, logprobs, usage) goes through the ordinary types.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tandem.engine.answers import Piece
from tandem.protocol.chat import ChatChunkChoice, Delta
from tandem.protocol.completions import CompletionChoice
from tandem.protocol.logprobs import ChatLogprobs, CompletionLogprobs
from tandem.protocol.usage import Usage

_encode: Final = msgspec.json.Encoder().encode


class ChunkEncoder:
    """Frames the choices of one answer. Chunks have the key `usage` (null) only where the client asked for usage."""

    object: str
    """OpenAI's name for the type of the chunk."""
    before_text: bytes
    after_text: bytes

    def __init__(self, answer_id: str, created: int, model: str, service_tier: str, *, with_usage_key: bool) -> None:
        head = {"id": answer_id, "object": self.object, "created": created, "model": model}
        head["service_tier"] = service_tier
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if with_usage_key else b"]}\n\n"
        self._text_tail = self.after_text + self._tail
        self._text_heads: dict[int, bytes] = {}

    def text(self, index: int, text: str, usage: Usage | None = None) -> bytes:
        """A chunk that adds nothing but text."""
        head = self._text_heads.get(index)
        if head is None:
            head = self._text_heads[index] = self._head + b'{"index":%d,' % index + self.before_text
        if usage is None:
            return head + _encode(text) + self._text_tail
        return head + _encode(text) + self.after_text + self._usage_tail(usage)

    def usage(self, usage: Usage) -> bytes:
        """The last chunk: no choices."""
        return self._head + self._usage_tail(usage)

    def _event(self, choice: msgspec.Struct, usage: Usage | None) -> bytes:
        return self._head + _encode(choice) + (self._tail if usage is None else self._usage_tail(usage))

    @staticmethod
    def _usage_tail(usage: Usage) -> bytes:
        return b'],"usage":' + _encode(usage) + b"}\n\n"


class ChatChunkEncoder(ChunkEncoder):
    """`chat.completion.chunk`."""

    object = "chat.completion.chunk"
    before_text = b'"delta":{"content":'
    after_text = b'},"logprobs":null,"finish_reason":null}'

    def opening(self, index: int, usage: Usage | None) -> bytes:
        """What a choice begins with, before any text."""
        return self._event(ChatChunkChoice(index=index, delta=Delta(role="assistant", content="")), usage)

    def full(self, piece: Piece, logprobs: ChatLogprobs | None, usage: Usage | None) -> bytes:
        """A chunk with everything a piece has."""
        choice = ChatChunkChoice(
            index=piece.index,
            delta=Delta(content=piece.text or None),
            logprobs=logprobs,
            finish_reason=piece.finish_reason,
            stop_reason=msgspec.UNSET if piece.finish_reason is None else piece.stop_reason,
        )
        return self._event(choice, usage)


class CompletionChunkEncoder(ChunkEncoder):
    """`text_completion`, whose chunks look like whole answers."""

    object = "text_completion"
    before_text = b'"text":'
    after_text = b',"logprobs":null,"finish_reason":null}'

    def full(self, piece: Piece, logprobs: CompletionLogprobs | None, usage: Usage | None) -> bytes:
        """A chunk with everything a piece has."""
        choice = CompletionChoice(
            index=piece.index,
            text=piece.text,
            logprobs=logprobs,
            finish_reason=piece.finish_reason,
            stop_reason=msgspec.UNSET if piece.finish_reason is None else piece.stop_reason,
        )
        return self._event(choice, usage)
