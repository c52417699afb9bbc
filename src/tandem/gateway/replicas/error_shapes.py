"""Every engine's error body, read into OpenAI's terms. Which shapes there are is known here, and nowhere else.

{"error": {message, type, param, code}}     OpenAI, vLLM, SGLang, llama.cpp (whose code is a number), tandem
{"object": "error", message, type, code}    older vLLM, TensorRT-LLM, SGLang
{"error": "text", "error_type": "…"}        TGI; TensorRT-LLM's validation (without a type)
{"detail": "text" | […]}                    FastAPI's own refusals
text or HTML                                a proxy in between, or a crash
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tandem.gateway.replicas.base import UpstreamError

MAX_MESSAGE_CHARS: Final = 2000
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 529})
_TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "invalid_request_error",
    413: "invalid_request_error", 422: "invalid_request_error", 429: "rate_limit_error",
    503: "service_unavailable_error", 504: "timeout_error",
}  # fmt: skip
"""status → OpenAI's `error.type`, where the engine's own is none of OpenAI's."""


@dataclass(frozen=True, slots=True)
class Told:
    """What an error body says, before it is judged."""

    message: str
    type: str | None = None
    code: str | None = None
    param: str | None = None
    status: int | None = None
    """Where the body itself names one."""


def read_told(body: bytes) -> Told | None:
    """None: the body is JSON, and not an error."""
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Told(_plain(body))
    if not isinstance(content, dict):
        return None
    error = content.get("error")
    if isinstance(error, dict):
        return _told(error)
    if isinstance(error, str):
        return Told(_short(error), type=_text(content.get("error_type")), status=_status(content.get("code")))
    if content.get("object") == "error" or (error is None and "message" in content and "choices" not in content):
        return _told(content)
    if (detail := content.get("detail")) is not None:
        return Told(_detail(detail))
    return None


def judge(status: int, told: Told | None) -> UpstreamError:
    """`status`: HTTP's; under a 200 the body's own counts, and 500 where it names none."""
    if status < 400:
        status = (told.status if told is not None else None) or 500
    if told is None or not told.message:
        told = Told(f"The engine answered with status {status} and no reason.")
    return UpstreamError(
        status=status,
        message=told.message,
        type=_type(status, told.type),
        code=told.code,
        param=told.param,
        is_retryable=is_retryable(status),
    )


def is_retryable(status: int) -> bool:
    return status in _RETRYABLE


def _type(status: int, given: str | None) -> str:
    """OpenAI's types are in snake case; class names (BadRequestError) and the like are replaced."""
    if given is not None and given.endswith("_error") and given.islower():
        return given
    return _TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "server_error")


def _told(error: dict[str, Any]) -> Told:
    code = error.get("code")
    return Told(
        message=_short(_text(error.get("message")) or ""),
        type=_text(error.get("type")),
        code=code if isinstance(code, str) and not code.isdigit() else None,
        param=_text(error.get("param")),
        status=_status(code),
    )


def _status(code: object) -> int | None:
    """An error's code that is in truth an HTTP status."""
    if isinstance(code, str) and code.isdigit() and len(code) == 3:
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
        return code
    return None


def _detail(detail: object) -> str:
    """FastAPI: a text, or a list of what is wrong where."""
    if isinstance(detail, list):
        parts = [
            f"{'.'.join(str(step) for step in item.get('loc', ()))}: {item.get('msg', '')}"
            for item in detail
            if isinstance(item, dict)
        ]
        return _short("; ".join(parts) or str(detail))
    return _short(str(detail))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _plain(body: bytes) -> str:
    """A page of HTML tells a client nothing."""
    text = body.decode("utf-8", "replace").strip()
    return "" if text.startswith("<") else _short(text)


def _short(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "…"
