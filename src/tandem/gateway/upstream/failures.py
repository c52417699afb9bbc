"""What can go wrong between the gateway and a replica, below HTTP's status codes.

    UpstreamFailure
    ├── ConnectFailed      nobody there, or not in time
    ├── ConnectionBroken   gone in the middle of an exchange
    │   └── StaleConnection   an idle connection that the replica had closed; nothing of the answer came
    ├── Silent             nothing more came for too long
    ├── Malformed          not HTTP, or not what was promised
    └── AnswerTooLarge     more bytes than we hold

These never reach a client as they are: `forwarding.py` turns them into the error tree.
"""

from __future__ import annotations


class UpstreamFailure(Exception):
    """Base of all of them. The text is for logs; it names no address."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConnectFailed(UpstreamFailure):
    """No connection could be made."""


class ConnectionBroken(UpstreamFailure):
    """The connection ended before the answer did."""


class StaleConnection(ConnectionBroken):
    """A kept connection ended before a byte of the answer: most likely it was closed while idle."""


class Silent(UpstreamFailure):
    """Connected, and nothing came."""


class Malformed(UpstreamFailure):
    """The bytes are not an HTTP answer, or the body is not what its endpoint promises."""


class AnswerTooLarge(UpstreamFailure):
    """Headers, body or one event beyond the limit."""
