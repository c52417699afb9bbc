"""The user's own prompts: JSON lines, or a file in ShareGPT's form."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import msgspec

from tandem.traffic.lines import DatasetError, decode_line, read_lines, wrong_line
from tandem.traffic.text import Ratio
from tandem.traffic.work import Conversation, Turn, single

_LINE: Final = '{"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}, with "max_tokens" if you like'
_SHAREGPT: Final = '[{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}, …]'
_ROLES: Final = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
                 "system": "system"}  # fmt: skip


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    timestamp_s: float | None = None
    extra: dict[str, Any] = {}


class _Said(msgspec.Struct):
    speaker: str = msgspec.field(name="from")
    value: str = ""


class _Talk(msgspec.Struct):
    conversations: list[_Said]


def read_jsonl(path: Path, max_tokens: int, ratio: Ratio) -> list[Conversation]:
    """One request a line. `max_tokens` where a line says none. Raises `DatasetError` with file and line."""
    decoder = msgspec.json.Decoder(_Line)
    found = []
    for number, text in read_lines(path):
        line: _Line = decode_line(path, number, text, decoder, _LINE)
        if (line.prompt is None) == (line.messages is None):
            both = "both prompt and messages" if line.prompt is not None else "neither prompt nor messages"
            raise wrong_line(path, number, f"the line has {both}", _LINE)
        if line.max_tokens is not None and line.max_tokens < 1:
            raise wrong_line(path, number, f"max_tokens is {line.max_tokens}", "at least 1")
        messages = line.messages if line.messages is not None else [{"role": "user", "content": line.prompt}]
        if not messages or any("role" not in message for message in messages):
            raise wrong_line(path, number, "messages are empty or lack a role", _LINE)
        wanted = line.max_tokens or max_tokens
        turn = Turn(tuple(messages), _tokens(messages, ratio), wanted, must_reach_max=line.max_tokens is not None)
        found.append(Conversation((turn,), line.timestamp_s, line.extra))
    if not found:
        raise DatasetError(f"{path} has no requests. Expected lines of {_LINE}.")
    return found


def read_sharegpt(path: Path, ratio: Ratio, seed: int) -> list[Conversation]:
    """The first question of each conversation, its recorded answer's length as the answer's; in seeded order."""
    try:
        talks = msgspec.json.decode(path.read_bytes(), type=list[_Talk])
    except OSError as error:
        raise DatasetError(f"{path} can't be read: {error.strerror}.") from error
    except msgspec.ValidationError as error:
        raise DatasetError(f"{path}: entry {_entry(str(error))}: {error}. Expected {_SHAREGPT}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise wrong_line(path, _line_of(path, str(error)), f"this is not JSON ({error})", _SHAREGPT) from error
    found = [conversation for talk in talks if (conversation := _from_talk(talk, ratio)) is not None]
    if not found:
        raise DatasetError(f"{path} has no conversation with a question and an answer. Expected {_SHAREGPT}.")
    random.Random(f"{seed} sharegpt").shuffle(found)
    return found


def _from_talk(talk: _Talk, ratio: Ratio) -> Conversation | None:
    """None for those that don't begin with a question and an answer."""
    said = [(_ROLES.get(entry.speaker, ""), entry.value) for entry in talk.conversations]
    start = 1 if said and said[0][0] == "system" else 0
    if [role for role, _ in said[start : start + 2]] != ["user", "assistant"]:
        return None
    messages = [{"role": role, "content": value} for role, value in said[: start + 1]]
    answer_tokens = max(1, round(len(said[start + 1][1].split()) * ratio.tokens_per_word))
    return single(Turn(tuple(messages), _tokens(messages, ratio), answer_tokens))


def _tokens(messages: list[dict[str, Any]], ratio: Ratio) -> int:
    """Estimated. Contents that aren't text (images) count as nothing."""
    return ratio.tokens(sum(len(m["content"].split()) for m in messages if isinstance(m.get("content"), str)))


def _entry(message: str) -> str:
    """The index in "… - at `$[3].conversations`"."""
    return message.partition("`$[")[2].partition("]")[0] or "?"


def _line_of(path: Path, message: str) -> int:
    """The line of a byte offset in a decoder's "… (byte 123)"; without one the data ended too soon: the last line."""
    digits = message.rpartition("(byte ")[2].rstrip(")")
    data = path.read_bytes()
    return data[: int(digits) if digits.isdigit() else len(data)].count(b"\n") + 1
