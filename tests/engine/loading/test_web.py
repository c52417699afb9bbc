"""Proxies, certificates and passwords on the way to an index."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tandem.core.errors import ConfigError, ModelError
from tandem.engine.loading.pip_settings import PipSettings
from tandem.engine.loading.pypi import find_file
from tandem.engine.loading.web import Web, without_password
from tests.engine.loading.loopback import Fault, Loopback


def get(web: Web, url: str) -> bytes:
    with web.open(url, {}) as response:
        return response.read()


def test_proxy_of_pip_and_of_the_environment(site: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("http://far.invalid/x", b"by proxy")
    assert get(Web(PipSettings(proxy=site.url)), "http://far.invalid/x") == b"by proxy"
    monkeypatch.setenv("http_proxy", site.url)
    assert get(Web(PipSettings()), "http://far.invalid/x") == b"by proxy"


def test_password_goes_to_its_host_only(site: Loopback) -> None:
    site.add("/x", b"here")
    site.faults["/away"] = [Fault(redirect=f"http://localhost:{site.port}/x")]
    web = Web(PipSettings())
    assert get(web, site.url.replace("//", "//me:s%40crit@") + "/x") == b"here"
    assert get(web, site.url + "/x") == b"here"
    assert get(web, site.url + "/away") == b"here"
    wanted = "Basic " + base64.b64encode(b"me:s@crit").decode()
    assert [seen.headers.get("authorization") for seen in site.seen] == [wanted, wanted, wanted, None]


def test_passwords_stay_out_of_errors(site: Loopback) -> None:
    url = site.url.replace("//", "//me:secret@") + "/simple"
    site.faults["/simple/p/"] = [Fault(status=401)]
    for pattern in ("answered 401", "No package index has"):
        with pytest.raises(ModelError, match=pattern) as caught:
            find_file(Web(PipSettings()), (url,), "p", "f")
        assert "secret" not in str(caught.value)
    assert without_password(url) == f"{site.url}/simple"


def test_certificate_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    for path in (tmp_path / "c.pem", tmp_path / "absent.pem"):
        with pytest.raises(ConfigError, match=r"certificate file .* can't be read"):
            Web(PipSettings(cert=str(path)))
