"""pip's configuration: which files, which wins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.core.errors import ConfigError
from tandem.engine.loading.pip_settings import PYPI, PipSettings, read_pip_settings


def test_without_any_configuration() -> None:
    assert read_pip_settings({"PIP_CONFIG_FILE": os.devnull}) == PipSettings((PYPI,), None, None)


def test_environment() -> None:
    environ = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "https://mirror.invalid/simple/",
        "PIP_EXTRA_INDEX_URL": "https://b.invalid/simple file:///srv/wheels https://mirror.invalid/simple",
        "PIP_CERT": "/etc/ca.pem",
        "PIP_PROXY": "http://proxy.invalid:3128",
    }
    urls = ("https://mirror.invalid/simple", "https://b.invalid/simple")
    assert read_pip_settings(environ) == PipSettings(urls, "/etc/ca.pem", "http://proxy.invalid:3128")


def test_files_by_importance(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
    places = ("xdg/pip/pip.conf", ".pip/pip.conf", ".config/pip/pip.conf", "named.conf")
    for place in places:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[global]\nindex-url = https://{place.replace('/', '-')}.invalid\n")
        environ |= {"PIP_CONFIG_FILE": str(path)} if place == "named.conf" else {}
        assert read_pip_settings(environ).index_urls[0] == f"https://{place.replace('/', '-')}.invalid"
    assert read_pip_settings(environ | {"PIP_INDEX_URL": "https://env.invalid"}).index_urls[0] == "https://env.invalid"


def test_sections_and_spellings(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text(
        "[global]\nindex_url = https://a.invalid\ncert = /ca.pem\n"
        "extra-index-url =\n    https://b.invalid\n    https://c.invalid\n"
        "[download]\nindex-url = https://d.invalid\n[install]\nindex-url = https://e.invalid\n"
    )
    settings = read_pip_settings({"PIP_CONFIG_FILE": str(path), "HOME": str(tmp_path)})
    assert settings.index_urls == ("https://d.invalid", "https://b.invalid", "https://c.invalid")
    assert settings.cert == "/ca.pem"


def test_malformed_file(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("index-url = https://a.invalid\n")
    with pytest.raises(ConfigError, match=r"pip\.conf can't be read"):
        read_pip_settings({"PIP_CONFIG_FILE": str(path)})
