"""Fetches one file of known hash: resumes what was begun, and publishes only what is whole. Knows no package index."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO, BinaryIO, cast
from urllib.parse import urlsplit

from tandem.core.errors import ModelDamaged, ModelError
from tandem.engine.loading.progress import Progress
from tandem.engine.loading.web import Refused, Transient, Web, receive, without_password

CHUNK_BYTES = 1 << 20


def download(web: Web, url: str, target: Path, sha256: str, progress: Progress) -> None:
    """Put the file at `url` to `target`, verified. What came before an interruption stays in `target`.part, and counts.

    If the whole has a wrong hash, the beginning may have been another file's: once more, from nothing. Raises
    `ModelError` if the server can't be reached, `ModelDamaged` if what it sends isn't the file.
    """
    part = target.with_name(target.name + ".part")
    for _ in range(2):
        web.persist(url, lambda: _continue(web, url, part, progress), lambda: _size(part))
        found = file_sha256(part)
        if found == sha256:
            os.replace(part, target)
            return
        part.unlink()
    raise ModelDamaged(
        f"{without_password(url)} has SHA-256 {found}, but {sha256} is expected; it was changed on its way."
    )


def _continue(web: Web, url: str, part: Path, progress: Progress) -> None:
    """One connection: fetch what `part` lacks at its end. Raises `Transient` if the connection ends too soon."""
    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = web.open(url, headers)
    except Refused as error:
        if error.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # nothing behind what we have; the hash decides whether it is the file
        raise ModelError(f"{without_password(url)} can't be fetched: {error}.") from error
    with response:
        start = have if _resumes_at(response, have) else 0
        total = None if response.length is None else start + response.length
        progress.start(f"Fetching {urlsplit(url).path.rpartition('/')[2]}", total)
        try:
            progress.advance(start)
            _receive_rest(response, part, start, progress)
        finally:
            progress.finish()
    if total is not None and _size(part) < total:
        raise Transient(f"the connection ended at byte {_size(part)} of {total}")


def _receive_rest(response: http.client.HTTPResponse, part: Path, start: int, progress: Progress) -> None:
    with writing(part, "r+b" if start else "wb") as file:
        file.seek(start)
        while chunk := receive(response, CHUNK_BYTES):
            file.write(chunk)
            progress.advance(len(chunk))


def _resumes_at(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the body continues what we have; a server that doesn't know ranges sends the whole."""
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status == HTTPStatus.PARTIAL_CONTENT and match is not None and int(match[1]) == have


@contextmanager
def writing(path: Path, mode: str) -> Iterator[BinaryIO]:
    """An open file; whatever the disk refuses, at the latest on closing, becomes a `ModelError`."""
    try:
        with path.open(mode) as file:
            yield cast(BinaryIO, file)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ModelError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(f"The disk is full: {path} can't be written. Free some space, or set TANDEM_CACHE elsewhere.")
    return ModelError(f"{path} can't be written: {error.strerror or error}.")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def file_sha256(path: Path) -> str:
    """Hexadecimal; about 1 s for 1 GB."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file, piece by piece."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
