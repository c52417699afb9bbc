"""Whatever is wrong with an engine file is one sentence: at once for what opening reads, else when a part is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.core.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported
from tandem.engine.loading.engine_container import ALIGNMENT, HEADER_BYTES, MAGIC, EngineContainer, rebuild_command
from tandem.engine.loading.engine_file import open_engine_file
from tandem.engine.loading.engine_manifest import Part
from tests.engine.loading import engine_files
from tests.engine.loading.engine_files import write_engine


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    write_engine(tmp_path / "x.engine")
    return tmp_path / "x.engine"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_whole_file_verifies(path: Path) -> None:
    container = EngineContainer(path)
    container.verify()
    assert all(part.offset % ALIGNMENT == 0 for part in container.manifest.parts)
    names = [part.name for part in container.manifest.parts]
    assert names[:3] == ["weights", "package.pt2", "text/tokenizer.json"]


@pytest.mark.parametrize("at", [0, 3, 8, 12, 16, 24, 32, 40, 71, HEADER_BYTES - 1])
def test_every_byte_of_the_header_counts(path: Path, at: int) -> None:
    flip(path, at)
    with pytest.raises(ModelError):
        EngineContainer(path)


def test_every_byte_of_the_manifest_counts(path: Path) -> None:
    size = path.stat().st_size
    for at in (size - 1, size - 500):
        flip(path, at)
        with pytest.raises(ModelDamaged, match="its manifest isn't what was written"):
            EngineContainer(path)
        flip(path, at)
    EngineContainer(path)


@pytest.mark.parametrize("left", [1, 7, 8, 100, ALIGNMENT - 1, ALIGNMENT, 20_000, -1])
def test_cut_short_is_refused_at_once(path: Path, left: int) -> None:
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ModelDamaged, match=r"cut short.*Copy it again"):
        EngineContainer(path)


def test_something_behind_it_is_refused(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelDamaged, match="too long"):
        EngineContainer(path)


def test_damaged_parts_are_found_when_they_are_used(path: Path) -> None:
    library = EngineContainer(path).part("package.pt2")
    flip(path, library.offset + 5)
    opened = open_engine_file(path)  # weights and libraries aren't read yet
    with pytest.raises(ModelDamaged, match=r"its part package\.pt2 isn't what was written.*tandem build tiny"):
        opened.extract("package.pt2")
    with pytest.raises(ModelDamaged, match=r"package\.pt2"):
        EngineContainer(path).verify()


def test_a_damaged_tokenizer_is_found_when_opened(path: Path) -> None:
    flip(path, EngineContainer(path).part("text/tokenizer.json").offset)
    with pytest.raises(ModelDamaged, match=r"text/tokenizer\.json"):
        open_engine_file(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"GGUF\3\0\0\0" + bytes(9000), "isn't a Tandem engine file, but a GGUF model"),
        (b"PK\3\4" + bytes(9000), "but a zip archive"),
        (b"\x08\x07\x12\x07pytorch" + bytes(9000), "isn't a Tandem engine file. One is made by: tandem build"),
        (bytes(range(256)) * 100, "isn't a Tandem engine file"),
        (b"x", "isn't a Tandem engine file"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "foreign.engine"
    path.write_bytes(content)
    with pytest.raises(ModelDamaged, match="^[^\n]*" + said):
        open_engine_file(path)


def test_no_file_and_no_permission(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a folder"):
        EngineContainer(tmp_path)
    with pytest.raises(ModelNotFound, match="doesn't exist"):
        EngineContainer(tmp_path / "none.engine")
    with pytest.raises(ModelNotFound, match="can't be read"):
        EngineContainer(tmp_path / ("n" * 300))


def test_another_format_version(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(MAGIC)] = 9
    path.write_bytes(data)
    with pytest.raises(ModelUnsupported, match=r"format version 9, and this Tandem reads version 1.*tandem build"):
        EngineContainer(path)


def test_parts_can_not_lead_astray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"name": "w", "kind": "weights", "offset": ALIGNMENT, "size_bytes": 10, "sha256": "00" * 32}
    for change in (
        {"name": "../../etc/x"},
        {"name": ""},
        {"offset": 0},
        {"offset": ALIGNMENT + 1},
        {"offset": 1 << 40},
        {"size_bytes": 1 << 40},
        {"size_bytes": -1},
    ):
        part = Part(**(good | change))  # type: ignore[arg-type]
        _write_with_parts(tmp_path / "x.engine", [part], monkeypatch)
        with pytest.raises(ModelDamaged, match="describes the part"):
            EngineContainer(tmp_path / "x.engine")
    twice = Part(**good)  # type: ignore[arg-type]
    _write_with_parts(tmp_path / "x.engine", [twice, twice], monkeypatch)
    with pytest.raises(ModelDamaged, match="describes the part"):
        EngineContainer(tmp_path / "x.engine")


def _write_with_parts(path: Path, parts: list[Part], monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.compiler.engine_writer import EngineWriter

    with EngineWriter(path) as writer:
        writer.add("w", "weights", bytes(5000))
        monkeypatch.setattr(writer, "_parts", parts)
        writer.finish(engine_files.manifest())


def test_fields_of_a_later_version_are_passed_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.compiler import engine_writer
    from tandem.engine.loading.engine_manifest import EngineManifest, encode_manifest

    def with_news(manifest: EngineManifest, indent: int = 0) -> bytes:
        return encode_manifest(manifest, indent).replace(b'{"source":', b'{"news": [1], "source":', 1)

    monkeypatch.setattr(engine_writer, "encode_manifest", with_news)
    write_engine(path)
    assert b'"news"' in path.read_bytes()
    assert EngineContainer(path).manifest.fingerprint == "f00d"


def test_the_command_names_the_file_where_it_is_now() -> None:
    made = engine_files.manifest()
    assert rebuild_command(made, Path("/a b/y.engine")) == (
        "tandem build tiny -o '/a b/y.engine' --precision int4 --force"
    )
