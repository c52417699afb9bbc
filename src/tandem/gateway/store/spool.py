"""Ledger rows on disk while the database is away: append-only files of JSON lines, forced to disk batch by batch.

A file belongs to the process that writes it, which holds a lock on it (`flock`) that ends with the process. A file that
nobody holds was left by a process that died; whoever finds it takes it over. Rows may be replayed twice, never lost:
the ledger takes each request once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from tandem.protocol.ledger import LedgerRow

SUFFIX: Final = ".jsonl"
_decoder = msgspec.json.Decoder(LedgerRow)
_log = logging.getLogger(__name__)


class Spool:
    """One process's part of a folder. Its methods block and aren't called by two threads at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._path: Path | None = None
        self._own: set[Path] = set()

    def append(self, rows: Sequence[LedgerRow]) -> None:
        """On disk when it returns. Raises `OSError`; a part of the rows may then be there already."""
        file = self._open()
        end = file.seek(0, os.SEEK_END)
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        try:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            # A half line in the middle would spoil the next: back to where it was.
            os.ftruncate(file.fileno(), end)
            raise

    def has_own(self) -> bool:
        return any(path.exists() for path in self._own)

    def is_own(self, path: Path) -> bool:
        """Whether this process wrote it, rather than one that is gone."""
        return path in self._own

    def take(self) -> Iterator[Path]:
        """Finished files, oldest first: our own, and those of processes that are gone. Each is locked while in use."""
        self._finish()
        for path in sorted(self._folder.glob(f"*{SUFFIX}"), key=_age):
            try:
                file = path.open("rb+")
            except FileNotFoundError:
                continue  # Another gateway was quicker.
            with file:
                # A lock on a file that its last owner has just removed is a lock on nothing.
                if _lock(file) and path.exists():
                    yield path

    def close(self) -> None:
        self._finish()

    def _open(self) -> IO[bytes]:
        if self._file is not None and self._path is not None and self._path.exists():
            return self._file
        self._finish()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"ledger-{os.getpid()}-{secrets.token_hex(6)}{SUFFIX}"
        # Locked under a name that nobody looks for, so that no one takes it over in between.
        hidden = self._path.with_suffix(".new")
        file = open(os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "rb+", buffering=0)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        hidden.rename(self._path)
        self._file = file
        self._own.add(self._path)
        return file

    def _finish(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def read_rows(path: Path) -> Iterator[LedgerRow]:
    """Rows of a file. The last line may be torn, by a crash; a damaged one elsewhere is told and kept in the log."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeError, AssertionError) as error:
                if line.endswith(b"\n"):
                    _log.error("line %d of the spooled ledger %s can't be read: %s", number, path, error)
                else:
                    _log.warning("the last line of the spooled ledger %s was never written in full", path)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
