"""The front's text layer over `engine.text`: a model's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tandem.config.server import ServerConfig
from tandem.core.sampling_params import SamplingParams
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.chat_prompt import chat_template_of, render_and_encode
from tandem.engine.text.text_stream import TextStream
from tandem.engine.text.tokenizer import load_tokenizer
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.messages import ChatMessage


class LocalText:
    """Implements `text_service.TextService`. Raises `ModelError`s when made, `InvalidRequest` when used."""

    def __init__(self, files: TextFiles, config: ServerConfig, chat_template: str | None = None) -> None:
        """`chat_template`: a file with a template to use in place of the model's own."""
        self._tokenizer = load_tokenizer(files)
        self._template = chat_template_of(self._tokenizer, chat_template)
        self.longest_token_bytes = self._tokenizer.token_bytes.longest
        self._parse_special = config.parse_special_in_messages

    def render_chat(self, request: ChatCompletionRequest) -> list[int]:
        return render_and_encode(
            self._tokenizer,
            self._template,
            [_plain(message) for message in request.messages],
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            chat_template_kwargs=_template_settings(request),
            parse_special_in_messages=self._parse_special,
        )

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, parse_special=parse_special)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._tokenizer.special_ids else self._tokenizer.token_bytes[token_id]

    def token_name(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id)

    def open_stream(self, sampling: SamplingParams) -> TextStream:
        return TextStream.of(self._tokenizer.token_bytes, sampling)


def _template_settings(request: ChatCompletionRequest) -> dict[str, Any] | None:
    """`reasoning_effort` is a variable of those templates that know it; set explicitly, it wins."""
    if request.reasoning_effort is None:
        return request.chat_template_kwargs
    return {"reasoning_effort": request.reasoning_effort} | (request.chat_template_kwargs or {})


def _plain(message: ChatMessage) -> dict[str, Any]:
    """As the template sees it: only the keys that the client gave, the content as one text."""
    plain: dict[str, Any] = msgspec.to_builtins(message)
    if isinstance(message.content, list):
        plain["content"] = message.text()
    return plain
