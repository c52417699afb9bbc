"""Log lines for people (text) or collectors (JSON), on standard error, each with the id of the request it is about.

Nothing that a client wrote belongs in a log: no prompt, no answer, no key. Callers log ids, counts and names.
"""

from __future__ import annotations

import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, Final, Literal, TextIO

import msgspec

LogFormat = Literal["text", "json"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Set by whoever begins to handle a request; tasks started under it inherit it."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request_id", "taskName"}
"""Attributes every record has; what else a record carries came from `extra=` and is shown."""


def setup_logging(level: str = "info", log_format: LogFormat = "text", stream: TextIO | None = None) -> None:
    """Direct the whole process's log to `stream` (default: standard error), in place of any earlier set-up."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_add_request_id)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("asyncio", "alembic"):
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))


def _add_request_id(record: logging.LogRecord) -> bool:
    record.request_id = request_id.get()
    return True


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class TextFormatter(logging.Formatter):
    """`12:00:00.000 info tandem.engine.server req-1: message key=value`; one event is one line."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        current = getattr(record, "request_id", None)
        who = record.name if current is None else f"{record.name} {current}"
        extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
        line = f"{clock}.{int(record.msecs):03} {record.levelname.lower()} {who}: {record.getMessage()}{extras}"
        line = line.translate(_ESCAPES)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, ISO 8601), level, logger, message, request_id, then the extras."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (current := getattr(record, "request_id", None)) is not None:
            fields["request_id"] = current
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields | _extras(record), enc_hook=str).decode()


_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)}
"""A client-made name with a newline in it must not look like a line of its own."""
