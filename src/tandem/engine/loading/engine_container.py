"""The engine file as bytes: a header, parts that can be mapped, and the manifest that names them. Runs nothing of it.

    0        header: magic, format version, where the manifest lies, the file's size, a checksum of the header itself
    4096     the parts, each at a multiple of 4096, so that it can be mapped into memory by itself
    …        the manifest: JSON, its SHA-256 in the header

Opening verifies header, manifest and the sizes of everything, which takes a millisecond and finds whatever was cut
short. The parts have hashes too; they are compared when a part is copied out, or all at once by `verify`. Checksums
tell damage, not malice: whoever can write the file can write its hashes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shlex
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from tandem.core.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from tandem.engine.loading.engine_manifest import FORMAT_VERSION, EngineManifest, Part, decode_manifest

MAGIC = b"\x89TANDEM\n"
"""No text begins like this, and a transfer that changes line ends breaks it."""
ALIGNMENT = 4096
MAX_MANIFEST_BYTES = 64 << 20
_VERSION = struct.Struct("<8sI")
_HEADER = struct.Struct("<8sIIQQQ32s")
"""Magic, format version, reserved, offset and length of the manifest, size of the file, SHA-256 of the manifest."""
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_OTHERS = (
    (b"GGUF", "a GGUF model"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x7fELF", "a program or library"),
    (b"#!", "a script"),
)
"""How files begin that are easily taken for an engine file."""


class Header(NamedTuple):
    manifest_offset: int
    manifest_bytes: int
    file_bytes: int
    manifest_sha256: bytes

    def pack(self) -> bytes:
        """With its checksum; `HEADER_BYTES` long."""
        fields = _HEADER.pack(MAGIC, FORMAT_VERSION, 0, *self)
        return fields + _CHECKSUM.pack(zlib.crc32(fields))


class EngineContainer:
    """An open file: its manifest, and its parts as they lie. The mapping lives as long as this or a view of a part."""

    def __init__(self, path: Path) -> None:
        """Raises `ModelNotFound`, `ModelDamaged`, `ModelUnsupported`; each is a sentence that names the file."""
        self.path = path
        # All of it is mapped once: should a new build take the file's name, this one's parts stay together.
        self._data = _map(path)
        self.manifest = _read_manifest(path, self._data)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def part(self, name: str) -> Part:
        """Raises `ModelDamaged` where the file has no such part."""
        found = self.manifest.part(name)
        if found is None:
            raise ModelDamaged(f"{self.path} has no part {name!r}; it is incomplete. Build it again.")
        return found

    def view(self, part: Part) -> memoryview:
        """The part's bytes, read-only, not copied, not verified."""
        return memoryview(self._data)[part.offset : part.offset + part.size_bytes]

    def checked(self, part: Part) -> memoryview:
        """The same, verified: all of it is read, about 1 s for 1 GB. Raises `ModelDamaged`."""
        view = self.view(part)
        if hashlib.sha256(view).hexdigest() != part.sha256:
            raise ModelDamaged(f"{self.path} is damaged: its part {part.name} isn't what was written. {self.remedy()}")
        return view

    def verify(self) -> None:
        """Compare every part with its hash. Raises `ModelDamaged`."""
        for part in self.manifest.parts:
            self.checked(part)

    def remedy(self) -> str:
        """The sentence that says how to make the file anew."""
        return f"Copy it again, or build it again: {rebuild_command(self.manifest, self.path)}"


def rebuild_command(manifest: EngineManifest, path: Path) -> str:
    """The command that made the file, with the place where the file is now."""
    words = list(manifest.command)
    if "-o" in words[:-1]:
        words[words.index("-o") + 1] = str(path)
    return shlex.join([*words, "--force"] if "--force" not in words else words)


def is_engine_file(path: Path) -> bool:
    """Told by its first bytes; False for what can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # how mmap refuses a file of no bytes
        raise ModelDamaged(f"{path} is empty; an engine file is made by: tandem build MODEL -o {path}") from error
    except IsADirectoryError as error:
        raise ModelNotFound(f"{path} is a folder, not an engine file.") from error
    except FileNotFoundError as error:
        raise ModelNotFound(f"{path} doesn't exist.") from error
    except OSError as error:
        raise ModelNotFound(f"{path} can't be read: {error.strerror or os.strerror(error.errno or 0)}.") from error


def _read_manifest(path: Path, data: mmap.mmap) -> EngineManifest:
    header = _read_header(path, data)
    if len(data) != header.file_bytes:
        what = "cut short" if len(data) < header.file_bytes else "too long"
        raise ModelDamaged(
            f"{path} is {what}: it has {len(data):,} bytes, and {header.file_bytes:,} were written. Copy it again."
        )
    end = header.manifest_offset + header.manifest_bytes
    if header.manifest_bytes > MAX_MANIFEST_BYTES or end > len(data):
        raise ModelDamaged(f"{path} is damaged: its header names a manifest that isn't in the file.")
    manifest = data[header.manifest_offset : end]
    if hashlib.sha256(manifest).digest() != header.manifest_sha256:
        raise ModelDamaged(f"{path} is damaged: its manifest isn't what was written. Copy it again, or build it again.")
    try:
        decoded = decode_manifest(manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelDamaged(f"{path} has a manifest that this Tandem can't read: {error}.") from error
    _check_parts(path, decoded, header)
    return decoded


def _read_header(path: Path, data: mmap.mmap) -> Header:
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise ModelDamaged(
            f"{path} isn't a Tandem engine file{_other(data)}. One is made by: tandem build MODEL -o FILE"
        )
    if len(data) < ALIGNMENT:
        raise ModelDamaged(f"{path} is cut short: it has only {len(data):,} bytes. Copy it again, or build it again.")
    _, version = _VERSION.unpack_from(data)
    if version != FORMAT_VERSION:
        raise ModelUnsupported(
            f"{path} is of format version {version}, and this Tandem reads version {FORMAT_VERSION}; build it again "
            f"with this one: tandem build MODEL -o {path}"
        )
    fields = data[: _HEADER.size]
    if zlib.crc32(fields) != _CHECKSUM.unpack_from(data, _HEADER.size)[0]:
        raise ModelDamaged(f"{path} is damaged: its header isn't what was written. Copy it again, or build it again.")
    return Header(*_HEADER.unpack(fields)[3:])


def _other(data: mmap.mmap) -> str:
    for start, name in _OTHERS:
        if data[: len(start)] == start:
            return f", but {name}"
    return ""


def _check_parts(path: Path, manifest: EngineManifest, header: Header) -> None:
    """A manifest of another program, or of a mistake of ours, must not lead out of the file or out of a folder."""
    names = [part.name for part in manifest.parts]
    for part in manifest.parts:
        is_inside = part.offset >= ALIGNMENT and 0 <= part.size_bytes <= header.manifest_offset - part.offset
        is_plain = all(piece not in ("", ".", "..") for piece in part.name.split("/")) and "\0" not in part.name
        if not is_inside or not is_plain or part.offset % ALIGNMENT or names.count(part.name) > 1:
            raise ModelDamaged(f"{path} is damaged: its manifest describes the part {part.name!r} wrongly.")
