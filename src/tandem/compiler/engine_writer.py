"""Writes an engine file so that it is there whole or not at all. Knows the container, not what the parts mean.

Everything a build writes lies in one hidden folder beside the target, `.NAME.building`: the file itself until it is
renamed, and a working folder. The folder is locked as long as the build runs. It goes when the build ends, however that
ends; after a kill that can't be caught, the next build finds it unlocked and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from tandem.compiler.text_parts import text_parts
from tandem.core.errors import BuildFailed, ModelError
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.engine_container import ALIGNMENT, EngineContainer, Header, is_engine_file
from tandem.engine.loading.engine_manifest import EngineManifest, Part, PartKind, decode_manifest, encode_manifest

CHUNK_BYTES = 4 << 20


class EngineWriter:
    """`with EngineWriter(target) as writer:` add the parts, then `finish`. Open it before the long work begins.

    Parts lie in the file in the order in which they are added. Without `finish` nothing stays. Raises `BuildFailed` for
    a target that can't be written, a full disk, and a target that another build is writing.
    """

    def __init__(self, target: Path) -> None:
        check_target(target)
        self.target = target
        self._folder = target.with_name(f".{target.name}.building")
        self._lock: IO[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._parts: list[Part] = []

    @property
    def work(self) -> Path:
        """A folder for whatever else the build has to write; removed with the rest."""
        return self._folder / "work"

    def __enter__(self) -> EngineWriter:
        try:
            with self._explained():
                self._lock = _lock_folder(self._folder, self.target)
                self.work.mkdir()
                self._file = (self._folder / "engine").open("w+b")
                self._file.write(bytes(ALIGNMENT))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def expect(self, num_bytes: int) -> None:
        """Raise now if so much won't fit: better than after minutes."""
        free = shutil.disk_usage(self._folder).free
        if num_bytes > free:
            raise BuildFailed(
                f"{self.target} takes {num_bytes / 1e6:.0f} MB, but {self.target.parent} has only {free / 1e6:.0f} MB "
                "free. Free some space, or write elsewhere with -o."
            )

    def add(self, name: str, kind: PartKind, data: bytes | memoryview) -> Part:
        """A part from memory; a tensor's is `memoryview(tensor.numpy())`. Nothing is copied but to the disk."""
        view = memoryview(data).cast("B")
        return self.add_stream(name, kind, (view[at : at + CHUNK_BYTES] for at in range(0, len(view), CHUNK_BYTES)))

    def add_file(self, name: str, kind: PartKind, path: Path) -> Part:
        """A part from a file."""
        with self._explained(), path.open("rb") as file:
            return self.add_stream(name, kind, iter(lambda: file.read(CHUNK_BYTES), b""))

    def add_text(self, checkpoint: Checkpoint) -> None:
        """What the tokenizer and the chat template of `checkpoint` are opened from."""
        for name, data in text_parts(checkpoint.text):
            self.add(name, "text", data)

    def add_stream(self, name: str, kind: PartKind, chunks: Iterable[bytes | memoryview]) -> Part:
        """A part, piece by piece, in bounded memory."""
        assert self._file is not None, "the writer isn't open"
        assert all(part.name != name for part in self._parts), f"two parts called {name}"
        digest, size = hashlib.sha256(), 0
        with self._explained():
            offset = self._align()
            for chunk in chunks:
                self._file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        self._parts.append(Part(name=name, kind=kind, offset=offset, size_bytes=size, sha256=digest.hexdigest()))
        return self._parts[-1]

    def finish(self, manifest: EngineManifest) -> EngineManifest:
        """Write the manifest with the parts in it, and put the file in its place. Returns that manifest."""
        assert self._file is not None, "the writer isn't open"
        whole = msgspec.structs.replace(manifest, parts=tuple(self._parts))
        data = encode_manifest(whole)
        try:
            decode_manifest(data)
        except msgspec.MsgspecError as error:  # a number that JSON doesn't have: better here than when it is opened
            raise BuildFailed(
                f"{self.target} isn't written: a figure of its manifest is no number: {error}."
            ) from error
        with self._explained():
            offset = self._align()
            self._file.write(data)
            header = Header(offset, len(data), offset + len(data), hashlib.sha256(data).digest())
            self._file.seek(0)
            self._file.write(header.pack())
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._folder / "engine", self.target)
            _sync_folder(self.target.parent)
        return whole

    def _align(self) -> int:
        assert self._file is not None
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        return self._file.tell()

    def _remove(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # closing writes what is buffered, which may be what didn't fit
                self._file.close()
        if self._lock is not None:
            # Removed while it is locked: nobody else can have begun in it.
            try:
                shutil.rmtree(self._folder, ignore_errors=True)
            except BaseException:  # an impatient second Ctrl-C
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
            finally:
                self._lock.close()
        self._file = self._lock = None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _unwritable(self.target, error) from error


def check_target(target: Path) -> None:
    """Raises `BuildFailed` where a build would have no place, or would put its file over something else's."""
    if target.is_dir():
        raise BuildFailed(f"{target} is a folder; name the file to write: -o {target / 'NAME.engine'}")
    if not target.parent.is_dir():
        raise BuildFailed(f"{target.parent} isn't a folder, so {target.name} can't be written there. Make it first.")
    is_taken = target.exists() and (not target.is_file() or target.stat().st_size > 0)
    if is_taken and not is_engine_file(target):
        raise BuildFailed(f"{target} is there and isn't an engine file; it is left as it is. Write to another name.")


def find_existing(path: Path, fingerprint: str) -> EngineManifest | None:
    """The manifest of the file at `path`, if it was built from these inputs and is whole. All of it is read.

    A file that was accepted although its quality is past the limits counts, too: look at `quality`.
    """
    try:
        container = EngineContainer(path)
        if container.manifest.fingerprint != fingerprint:
            return None
        container.verify()
    except ModelError:
        return None
    return container.manifest


def _lock_folder(folder: Path, target: Path) -> IO[bytes]:
    """Our own folder, empty, with the lock held. What a killed build left in it is removed."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            lock = (folder / "lock").open("ab")
        except FileNotFoundError:
            continue  # another build has just ended and removed the folder
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise BuildFailed(f"Another build is writing {target}; wait for it, or write elsewhere with -o.") from error
        if _is_same(folder / "lock", lock):
            _empty(folder)
            return lock
        lock.close()  # locked, but removed before: the folder of that name is somebody else's by now


def _is_same(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _empty(folder: Path) -> None:
    """All but the lock."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a power cut, where the file system can promise it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(target: Path, error: OSError) -> BuildFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BuildFailed(f"The disk is full: {target} can't be written. Free some space, or write elsewhere with -o.")
    if error.errno == errno.EFBIG:
        return BuildFailed(f"{target} would be larger than a file may be here (ulimit -f, or the file system's limit).")
    return BuildFailed(f"{target} can't be written: {error.strerror or error}.")
