"""From a conversation to token ids, so that control tokens come from the template only. Knows no HTTP.

A user may write "<|im_end|>" in a message, or a web page that a tool fetched may. Were that read as the control token
it spells, whoever writes a message could end it and speak in another role. So, before rendering, each control token in
the request's own texts is broken up by a breaker, a text that nobody can guess; after rendering, what still reads as a
control token is the template's, and the breakers are taken out of the rest, which is encoded as plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem.core.errors import ConfigError, InvalidRequest
from tandem.engine.text.chat_template import ChatTemplate, unguessable
from tandem.engine.text.tokenizer import Tokenizer


def chat_template_of(tokenizer: Tokenizer, path: str | None = None) -> ChatTemplate | None:
    """The template in the file `path`, else the model's own, compiled; None if there is none.

    Raises `ConfigError` for a file that can't be read, `ModelDamaged` for a template that can't be compiled.
    """
    source = tokenizer.chat_template if path is None else _read_template(path)
    return None if source is None else ChatTemplate(source, tokenizer.special_tokens)


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template {path} can't be read: {error}.") from error


def render_and_encode(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    parse_special_in_messages: bool = False,
) -> list[int]:
    """The prompt's ids. Raises `InvalidRequest`. Arguments as in `ChatTemplate.render`.

    No BOS is added: templates write their own. `parse_special_in_messages` lets control tokens in messages act.
    """
    if template is None:
        raise InvalidRequest(
            "This model has no chat template, so it doesn't know how a conversation is written down. Send a prompt to "
            "/v1/completions instead, or start with --chat-template FILE.",
            param="messages",
        )
    breaker = unguessable()

    def defuse(text: str) -> str:
        return tokenizer.control_tokens.defuse(text, breaker)

    try:
        prompt = template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
            change_text=None if parse_special_in_messages else defuse,
        )
    except InvalidRequest as error:  # a template's own message may quote a text
        raise InvalidRequest(error.message.replace(breaker, ""), param=error.param, code=error.code) from error
    if breaker not in prompt:
        return tokenizer.encode(prompt, add_special_tokens=False)
    return [token_id for ids in _encoded(tokenizer, prompt, breaker) for token_id in ids]


def _encoded(tokenizer: Tokenizer, prompt: str, breaker: str) -> Iterator[list[int]]:
    """Stretch by stretch, as the tokenizer itself would do it: text, control token, text, …"""
    end = 0
    for token in tokenizer.control_tokens.find_all(prompt):
        yield tokenizer.encode_plain(prompt[end : token.start].replace(breaker, ""), follows_token=end > 0)
        yield [token.token_id]
        end = token.end
    yield tokenizer.encode_plain(prompt[end:].replace(breaker, ""), follows_token=end > 0)
