"""One line of a batch as a request, and what its answer means: done, failed, try again.

It knows neither the proxy nor sockets: whoever wires the gateway hands in an `Execute`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

from tandem.core.errors import InvalidRequest, TandemError
from tandem.gateway.batches.results import LineResult, encode_answer, encode_failure
from tandem.protocol import headers as names
from tandem.protocol.errors import encode_error

FULL: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
BROKEN: Final = frozenset({HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
OWN_LIMITS: Final = ("rate_limit_exceeded", "insufficient_quota")
"""Codes of a 429 that is about the key, not about the engines."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRequest:
    """What to do for whom."""

    batch_id: str
    number: int
    custom_id: str
    endpoint: str
    tenant: str
    key_id: str
    """`StoredKeys.caller_of` gives its rules as they are now."""
    body: bytes
    deadline_unix_s: float
    """When the batch's window ends."""

    @property
    def request_id(self) -> str:
        """The same however often the line is tried."""
        return f"{self.batch_id}-{self.number}"


class LineAnswer(NamedTuple):
    """An HTTP answer without HTTP."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    request_id: str | None = None
    """The gateway's own, if it has one: it leads to the ledger."""


Execute = Callable[[LineRequest, Mapping[str, str]], Awaitable[LineAnswer]]
"""Sends a line on its way as batch work. The headers are those a client would have sent. Raises only for bugs."""


class Verdict(Enum):
    """What to do with an answer."""

    DONE = auto()
    FULL = auto()
    """No room: again later, however often."""
    LIMITED = auto()
    """The key's own limit: again later, and nothing else of that key before."""
    BROKEN = auto()
    """Again, a few times."""


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    """As much of an answer as concerns us."""

    usage: _Usage | None = None


class _Stream(msgspec.Struct):
    stream: bool | None = None


class _ErrorDetail(msgspec.Struct):
    code: str | int | None = None


class _Error(msgspec.Struct):
    error: _ErrorDetail


async def attempt(execute: Execute, line: LineRequest) -> LineAnswer:
    """One try. What goes wrong comes back as an answer; only cancelling goes through."""
    if _is_stream(line.body):
        return _refusal("stream can't be true in a batch.", "stream")
    headers = {names.REQUEST_ID: line.request_id, names.SERVICE_CLASS: "batch"}
    try:
        return LineAnswer(*await execute(line, headers))
    except TandemError as error:
        return LineAnswer(error.status, encode_error(error), getattr(error, "retry_after_s", None))
    except Exception:
        _log.exception("line %d of %s failed because of a bug", line.number, line.batch_id)
        return LineAnswer(500, encode_error(TandemError("The gateway failed on this request. Its log says why.")))


def judge(answer: LineAnswer) -> Verdict:
    if answer.status in FULL:
        is_limited = answer.status == HTTPStatus.TOO_MANY_REQUESTS and _error_code(answer.body) in OWN_LIMITS
        return Verdict.LIMITED if is_limited else Verdict.FULL
    if answer.status in BROKEN or (answer.status < HTTPStatus.MULTIPLE_CHOICES and not _is_object(answer.body)):
        return Verdict.BROKEN
    return Verdict.DONE


def result_of(line: LineRequest, answer: LineAnswer) -> LineResult:
    """The line's place in an output or error file. An answer that isn't JSON never spoils the file."""
    request_id = answer.request_id or line.request_id
    if not _is_object(answer.body):
        message = f"The answer, with status {answer.status}, was no JSON object."
        return LineResult(line.number, False, encode_failure(line.custom_id, "invalid_response", message))
    encoded = encode_answer(line.custom_id, answer.status, request_id, answer.body)
    is_success = HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES
    usage = _usage(answer.body) if is_success else _Usage()
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    return LineResult(line.number, is_success, encoded, usage.prompt_tokens, cached, usage.completion_tokens)


def _refusal(message: str, param: str) -> LineAnswer:
    return LineAnswer(HTTPStatus.BAD_REQUEST, encode_error(InvalidRequest(message, param=param)))


def _is_stream(body: bytes) -> bool:
    """Whether the line asks for a stream, which no file can hold."""
    try:
        return _stream_decoder.decode(body).stream is True
    except msgspec.DecodeError:
        return False  # The proxy says what is wrong with it.


_stream_decoder: Final = msgspec.json.Decoder(_Stream)
_object_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_body_decoder: Final = msgspec.json.Decoder(_Body)
_error_decoder: Final = msgspec.json.Decoder(_Error)


def _is_object(body: bytes) -> bool:
    try:
        _object_decoder.decode(body)
        body.decode()  # Text that isn't UTF-8 would make the whole file unreadable.
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _usage(body: bytes) -> _Usage:
    try:
        return _body_decoder.decode(body).usage or _Usage()
    except msgspec.DecodeError:
        return _Usage()


def _error_code(body: bytes) -> str | int | None:
    try:
        return _error_decoder.decode(body).error.code
    except (msgspec.DecodeError, UnicodeError):
        return None
