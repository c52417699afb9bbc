"""The engine's logprobs in the shapes of the two APIs, and vLLM's for prompts.

A token is shown as readable text. One that is only part of a character is shown by its bytes, as OpenAI does, so that
two such alternatives stay distinct and none is decoded with a neighbour it doesn't belong to.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from tandem.engine.front.text_service import TextService
from tandem.engine.messages import TokenLogprobs
from tandem.protocol.logprobs import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
    clip,
)


class _Spelling(NamedTuple):
    """How a token is written in an answer."""

    text: str
    byte_values: list[int]
    is_whole: bool
    """False when `text` spells bytes that are no whole characters."""


class LogprobFormatter:
    """Remembers how each token is spelled; it holds one entry a token of the vocabulary at most."""

    def __init__(self, text: TextService) -> None:
        self._text = text
        self._spellings: dict[int, _Spelling] = {}

    def chat(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
        return ChatLogprobs(content=[self._chat_token(entry) for entry in entries])

    def completion(self, entries: Sequence[TokenLogprobs], num_top: int, offsets: OffsetCounter) -> CompletionLogprobs:
        shaped = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        self.extend(shaped, entries, num_top, offsets)
        return shaped

    def echoed(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], num_top: int, offsets: OffsetCounter
    ) -> CompletionLogprobs:
        """A prompt's own logprobs; its first token has none, for nothing comes before it."""
        first = token_ids[0]
        shaped = CompletionLogprobs(
            tokens=[self._name(first)],
            token_logprobs=[None],
            top_logprobs=[None],
            text_offset=[offsets.advance(self._text.token_bytes(first))],
        )
        self.extend(shaped, [entry for entry in entries[1:] if entry is not None], num_top, offsets)
        return shaped

    def extend(
        self, shaped: CompletionLogprobs, entries: Sequence[TokenLogprobs], num_top: int, offsets: OffsetCounter
    ) -> None:
        for entry in entries:
            name = self._name(entry.token_id)
            top = {self._name(token_id): clip(logprob) for token_id, logprob in entry.top[:num_top]}
            top.setdefault(name, clip(entry.logprob))
            shaped.tokens.append(name)
            shaped.token_logprobs.append(clip(entry.logprob))
            shaped.top_logprobs.append(top)
            shaped.text_offset.append(offsets.advance(self._text.token_bytes(entry.token_id)))

    def prompt(self, entries: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
        return [None if entry is None else self._prompt_position(entry) for entry in entries]

    def spell(self, token_id: int) -> str:
        """One token as readable text."""
        return self._spelling(token_id).text

    def _chat_token(self, entry: TokenLogprobs) -> ChatTokenLogprob:
        spelling = self._spelling(entry.token_id)
        top = [
            TopLogprob(other.text, clip(logprob), other.byte_values)
            for token_id, logprob in entry.top
            for other in (self._spelling(token_id),)
        ]
        return ChatTokenLogprob(spelling.text, clip(entry.logprob), spelling.byte_values, top)

    def _prompt_position(self, entry: TokenLogprobs) -> dict[str, PromptLogprob]:
        ranked = {
            str(token_id): PromptLogprob(clip(logprob), rank, self._spelling(token_id).text)
            for rank, (token_id, logprob) in enumerate(entry.top, start=1)
        }
        own = PromptLogprob(clip(entry.logprob), entry.rank, self._spelling(entry.token_id).text)
        return ranked | {str(entry.token_id): own}

    def _name(self, token_id: int) -> str:
        """A token in completions, which have no `bytes` of their own: spelled bytes are marked, as OpenAI does."""
        spelling = self._spelling(token_id)
        return spelling.text if spelling.is_whole else f"bytes:{spelling.text}"

    def _spelling(self, token_id: int) -> _Spelling:
        spelling = self._spellings.get(token_id)
        if spelling is None:
            spelling = self._spellings[token_id] = self._spell(token_id)
        return spelling

    def _spell(self, token_id: int) -> _Spelling:
        added = self._text.token_bytes(token_id)
        if not added:
            return _Spelling(self._text.token_name(token_id) or f"<token {token_id}>", [], True)
        try:
            return _Spelling(added.decode(), list(added), True)
        except UnicodeDecodeError:
            return _Spelling("".join(f"\\x{value:02x}" for value in added), list(added), False)


class OffsetCounter:
    """Characters of text before each token, counting a character where its last byte arrives."""

    def __init__(self, start: int = 0) -> None:
        self._offset = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def advance(self, added: bytes) -> int:
        """The offset of the token that adds these bytes."""
        offset = self._offset
        self._offset += len(self._decoder.decode(added))
        return offset
