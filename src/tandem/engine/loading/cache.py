"""The folder where fetched models are kept: what is there, whether it is whole, and who may write. Fetches nothing.

    <root>/models/<name>/<file>          the model; appears whole or not at all
    <root>/models/<name>/manifest.json   what it should be: size, hash, and the time stamp at which it last was
    <root>/downloads/                    wheels being fetched; removed once the model is there
    <root>/locks/<name>                  held while a model is fetched or removed

A file is trusted if its size and its time stamp are as recorded. If only the time stamp differs, its hash decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from tandem.core.errors import ConfigError, ModelDamaged, ModelError, ModelNotFound
from tandem.engine.loading.catalog import CatalogEntry
from tandem.engine.loading.download import file_sha256, writing
from tandem.engine.loading.progress import Progress

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model on disk, as `tandem models` lists it."""

    name: str
    path: Path
    size_bytes: int
    source: str
    """`pypi` or `hub`."""
    license: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was put beside a model when it was known to be whole."""

    name: str
    file: str
    size_bytes: int
    sha256: str
    mtime_ns: int
    license: str


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """$TANDEM_CACHE, else $XDG_CACHE_HOME/tandem, else ~/.cache/tandem."""
    environ = os.environ if environ is None else environ
    if environ.get("TANDEM_CACHE"):
        return Path(environ["TANDEM_CACHE"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "tandem"
    return Path("~/.cache/tandem").expanduser()


class ModelCache:
    """Models under `root`. Looking needs no write permission; everything that writes holds the model's lock."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_root()

    @property
    def downloads(self) -> Path:
        return self.root / "downloads"

    def folder(self, name: str) -> Path:
        return self.root / "models" / name

    def lookup(self, entry: CatalogEntry, *, verify: bool = False) -> Path | None:
        """The model's file if it is there and whole; `verify` reads all of it (about 0.1 s for 100 MB)."""
        path = self.folder(entry.name) / entry.filename
        try:
            return path if self._is_whole(entry, path, verify) else None
        except OSError:
            return None

    def _is_whole(self, entry: CatalogEntry, path: Path, verify: bool) -> bool:
        status = path.stat()
        if status.st_size != entry.size_bytes:
            return False
        manifest = self._manifest(entry.name)
        known = manifest is not None and (manifest.sha256, manifest.mtime_ns) == (entry.sha256, status.st_mtime_ns)
        if known and not verify:
            return True
        if file_sha256(path) != entry.sha256:
            return False
        if not known:
            with contextlib.suppress(ModelError):  # a cache that others filled may be read-only
                self._record(entry, path)
        return True

    @contextlib.contextmanager
    def lock(self, name: str, progress: Progress) -> Iterator[None]:
        """Exclusive among processes; the system frees it when its holder ends, however it ends."""
        self._make(self.root / "locks")
        with self._open_lock(name) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.start(f"Waiting for another process that fetches {name}", None)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX)
                finally:
                    progress.finish()
            yield

    def prepare(self, num_bytes: int) -> None:
        """Make the folders, and raise before anything is fetched if they can't be written or `num_bytes` don't fit."""
        self._make(self.downloads)
        free = shutil.disk_usage(self.root).free
        if num_bytes > free:
            raise ModelError(
                f"{self.root} has {free / 1e6:.0f} MB free, but {num_bytes / 1e6:.0f} MB are needed."
                " Free some space, or set TANDEM_CACHE elsewhere."
            )

    def store(self, entry: CatalogEntry, content: Iterable[bytes]) -> Path:
        """Write, verify and publish the model in one go. The caller holds the lock."""
        folder = self.folder(entry.name)
        self._make(folder)
        path, temporary = folder / entry.filename, folder / f".{entry.filename}.tmp"
        try:
            found = _write_all(temporary, content)
            if found != entry.sha256:
                raise ModelDamaged(
                    f"{entry.name}: the joined file has SHA-256 {found}, but {entry.sha256} is expected."
                )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._record(entry, path)
        return path

    def models(self) -> list[CachedModel]:
        """Whole and published models, by name."""
        names = sorted(path.parent.name for path in self.root.glob(f"models/*/{MANIFEST}"))
        manifests = [manifest for name in names if (manifest := self._manifest(name))]
        return [
            CachedModel(m.name, self.folder(m.name) / m.file, m.size_bytes, "pypi", m.license)
            for m in manifests
            if (self.folder(m.name) / m.file).is_file()
        ]

    def remove(self, name: str, progress: Progress) -> None:
        """Delete a model; a process that has it open keeps it until it ends. Raises `ModelNotFound`."""
        if not self.folder(name).is_dir():
            raise ModelNotFound(f"{name} isn't in the cache, {self.root}.")
        with self.lock(name, progress):
            try:
                shutil.rmtree(self.folder(name))
            except OSError as error:
                raise ModelError(f"{self.folder(name)} can't be removed: {error.strerror or error}.") from error

    def _manifest(self, name: str) -> Manifest | None:
        try:
            values: Any = json.loads((self.folder(name) / MANIFEST).read_bytes())
            return Manifest(**values)
        except (OSError, ValueError, TypeError):
            return None

    def _record(self, entry: CatalogEntry, path: Path) -> None:
        status = path.stat()
        manifest = Manifest(entry.name, entry.filename, status.st_size, entry.sha256, status.st_mtime_ns, entry.license)
        temporary = path.parent / f".{MANIFEST}.{os.getpid()}"
        with writing(temporary, "wb") as file:
            file.write(json.dumps(asdict(manifest), indent=1).encode())
        os.replace(temporary, path.parent / MANIFEST)

    def _open_lock(self, name: str) -> IO[bytes]:
        path = self.root / "locks" / name
        try:
            return path.open("ab")
        except OSError as error:
            raise _unusable(path, error) from error

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(0, "no permission to write")
        except OSError as error:
            raise _unusable(folder, error) from error


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The cache can't be used: {path}: {error.strerror or error}. Set TANDEM_CACHE to a folder that can be written."
    )


def _write_all(path: Path, content: Iterable[bytes]) -> str:
    """Write to disk, not only to the system's memory; returns the SHA-256."""
    digest = hashlib.sha256()
    with writing(path, "wb") as file:
        for chunk in content:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
