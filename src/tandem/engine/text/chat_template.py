"""Renders a conversation to the text a model was trained on, by the model's own template. Knows no tokens.

A template is a program from a model file: it runs in `sandbox.py`, within limits. What goes wrong in it goes wrong for
these messages, so it is the client who is told (400); only a template that can't be compiled is the model's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import randbelow
from typing import Any

from jinja2 import Template, TemplateError

from tandem.core.errors import InvalidRequest, ModelDamaged
from tandem.engine.text.chat_messages import Message, map_message, map_texts, normalize_messages
from tandem.engine.text.sandbox import Sandbox
from tandem.engine.text.template_budget import Budget, TooCostly, spending
from tandem.engine.text.template_rules import TemplateRefused

TIME_LIMIT_S = 1.5
MIN_SIZE_LIMIT = 8 << 20
"""A prompt may always have so many characters; four times those of the request, if that is more."""
MAX_SOURCE_CHARS = 1 << 20
_WORK_FACTOR = 8
"""How many times the size limit a template may make in all, intermediate texts included."""
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)


class ChatTemplate:
    """A compiled template. Safe to use from several threads at once."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        """`special_tokens` are variables of the template: `bos_token`, … Raises `ModelDamaged`."""
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._time_limit_s = time_limit_s
        self._template = _compile(source, time_limit_s)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        change_text: Callable[[str], str] | None = None,
    ) -> str:
        """The prompt. Raises `InvalidRequest`.

        `add_generation_prompt` (None: unless a message is continued) opens the assistant's turn.
        `continue_final_message` leaves the last turn open, right behind its content, every blank of it included.
        `change_text` is applied to all texts of the request, once they are normalised.
        """
        variables = _variables(messages, tools, chat_template_kwargs or {}, change_text or _unchanged)
        variables["add_generation_prompt"] = _opens_turn(add_generation_prompt, continue_final_message)
        if not continue_final_message:
            return self._run(variables)
        mark = _mark_end(variables["messages"])
        try:
            return _cut_at(self._run(variables), mark)
        except InvalidRequest as error:  # a template's own words may quote the message that is marked
            raise InvalidRequest(error.message.replace(mark, ""), param=error.param) from error

    def _run(self, variables: dict[str, Any]) -> str:
        try:
            size_limit = max(MIN_SIZE_LIMIT, 4 * _num_chars(variables))
            with spending(Budget(self._time_limit_s, _WORK_FACTOR * size_limit)):
                return _collect(self._template, {**self._special_tokens, **variables}, size_limit)
        except TemplateRefused as error:
            raise InvalidRequest(f"{error}", param="messages") from error
        except TooCostly as error:
            raise InvalidRequest(f"The model's chat template was stopped: {error}.", param="messages") from error
        except Exception as error:  # a template's mistakes are Python's: KeyError, TypeError, RecursionError, …
            reason = f"{error}"[:500] or type(error).__name__
            raise InvalidRequest(f"The model's chat template failed: {reason}", param="messages") from error


def unguessable() -> str:
    """A text that no request contains, of digits only: no filter changes it, and JSON doesn't escape it."""
    return f"{randbelow(10**30):030}"


def _compile(source: str, time_limit_s: float) -> Template:
    if len(source) > MAX_SOURCE_CHARS:
        raise ModelDamaged(f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARS} are read.")
    try:
        with spending(Budget(time_limit_s, MIN_SIZE_LIMIT)):  # Jinja computes constant expressions here
            return Sandbox().from_string(source)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f" in line {line}" if line else ""
        raise ModelDamaged(f"the model's chat template isn't valid{place}: {error}.") from error
    except Exception as error:  # SyntaxError, RecursionError, TooCostly, …: whatever compiling it runs into
        raise ModelDamaged(f"the model's chat template can't be compiled: {error}.") from error


def _collect(template: Template, variables: dict[str, Any], size_limit: int) -> str:
    parts, size = [], 0
    for part in template.generate(variables):
        parts.append(part)
        size += len(part)
        if size > size_limit:
            raise TooCostly(f"it wrote more than {size_limit} characters")
    return "".join(parts)


def _num_chars(value: Any) -> int:
    """All text in JSON-like data, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_num_chars(key) + _num_chars(inner) for key, inner in value.items())
    return sum(map(_num_chars, value)) if isinstance(value, list | tuple) else 0


def _opens_turn(add_generation_prompt: bool | None, continue_final_message: bool) -> bool:
    if continue_final_message and add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other: one opens a new turn, the other goes "
            "on with the last.",
            param="continue_final_message",
        )
    return not continue_final_message if add_generation_prompt is None else add_generation_prompt


def _variables(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    settings: Mapping[str, Any],
    change: Callable[[str], str],
) -> dict[str, Any]:
    """What the request gives the template, its texts changed."""
    if taken := sorted(_RESERVED & settings.keys()):
        raise InvalidRequest(
            f"chat_template_kwargs can't set {', '.join(taken)}: the request has a field for it or the server decides.",
            param="chat_template_kwargs",
        )
    try:
        return {
            "documents": None,
            **{name: map_texts(value, change) for name, value in settings.items()},
            "messages": [map_message(message, change) for message in normalize_messages(messages)],
            "tools": map_texts(tools, change) if tools else None,
        }
    except RecursionError as error:
        raise InvalidRequest("messages or tools are nested too deeply.", param="messages") from error


def _unchanged(text: str) -> str:
    return text


def _mark_end(messages: list[Message]) -> str:
    """Marks where the last message's content ends, with something that no message can contain."""
    last = messages[-1]
    if last["role"] != "assistant":
        raise InvalidRequest(
            f"continue_final_message goes on with an answer, but the last message is of role {last['role']!r:.40}.",
            param="continue_final_message",
        )
    mark = unguessable()
    messages[-1] = {**last, "content": last["content"] + mark}
    return mark


def _cut_at(prompt: str, mark: str) -> str:
    end = prompt.rfind(mark)
    if end < 0:
        raise InvalidRequest(
            "The model's chat template doesn't show the last message's content, so it can't be continued.",
            param="continue_final_message",
        )
    return prompt[:end].replace(mark, "")
