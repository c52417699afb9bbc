"""An engine file is there whole or not at all, whatever ends the build."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tandem.compiler import engine_writer
from tandem.compiler.engine_writer import EngineWriter, check_target, find_existing
from tandem.core.errors import BuildFailed
from tandem.engine.loading.engine_container import EngineContainer
from tests.engine.loading.engine_files import manifest, quality, write_engine


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "x.engine"


def write(target: Path, fingerprint: str = "f00d", content: bytes = b"w" * 10_000) -> None:
    with EngineWriter(target) as writer:
        writer.add("weights", "weights", content)
        writer.finish(manifest(fingerprint=fingerprint))


def test_parts_come_back_as_they_were_given(target: Path, tmp_path: Path) -> None:
    (tmp_path / "library").write_bytes(b"L" * 5000)
    with EngineWriter(target) as writer:
        writer.add("weights", "weights", memoryview(b"\1\0\2\0\3\0\4\0").cast("H"))
        writer.add_file("package.pt2", "library", tmp_path / "library")
        writer.add_stream("empty", "config", iter(()))
        (writer.work / "scratch").write_bytes(b"s")
        assert names(target.parent) == [".x.engine.building"]
        written = writer.finish(manifest())
    assert names(target.parent) == ["x.engine"]
    container = EngineContainer(target)
    container.verify()
    assert container.manifest == written
    contents = [bytes(container.view(part)) for part in written.parts]
    assert contents == [b"\1\0\2\0\3\0\4\0", b"L" * 5000, b""]


def test_large_parts_are_written_in_pieces(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_writer, "CHUNK_BYTES", 1000)
    content = bytes(range(256)) * 50
    write(target, content=content)
    container = EngineContainer(target)
    container.verify()
    assert bytes(container.view(container.part("weights"))) == content


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_nothing_and_the_old_file_in_place(target: Path, error: type[BaseException]) -> None:
    write(target)
    before = target.read_bytes()

    def fail() -> Iterator[bytes]:
        yield b"begun"
        raise error

    with pytest.raises(error), EngineWriter(target) as writer:
        writer.add_stream("weights", "weights", fail())
    assert names(target.parent) == ["x.engine"]
    assert target.read_bytes() == before


def test_a_second_interruption_leaves_nothing_either(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.rmtree
    calls: list[Path] = []

    def interrupted(path: Path, ignore_errors: bool = False) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), EngineWriter(target):
        raise RuntimeError
    assert names(target.parent) == []


def test_without_finish_nothing_stays(target: Path) -> None:
    with EngineWriter(target) as writer:
        writer.add("weights", "weights", b"w")
    assert names(target.parent) == []


def test_a_full_disk_is_one_sentence(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BuildFailed, match=r"The disk is full: .*x\.engine can't be written"):
        write(target)
    assert names(target.parent) == []


def test_a_write_that_the_system_refuses_midway_leaves_nothing(target: Path) -> None:
    """A real refusal: the file may not grow past a limit, in a process of its own."""
    script = (
        "import sys; from pathlib import Path; from tests.compiler.test_engine_writer import write\n"
        "from tandem.core.errors import BuildFailed\n"
        "try: write(Path(sys.argv[1]), content=bytes(3_000_000))\n"
        "except BuildFailed as error: print(error)"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    command = [sys.executable, "-c", script, str(target)]
    result = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60)
    assert "would be larger than a file may be here" in result.stdout, result.stderr
    assert names(target.parent) == []


def test_space_is_asked_for_beforehand(target: Path) -> None:
    with EngineWriter(target) as writer:
        writer.expect(1000)
        with pytest.raises(BuildFailed, match=r"x\.engine takes 1000000000000 MB, but .* free"):
            writer.expect(10**18)


def test_a_killed_build_is_cleared_away_by_the_next(target: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tandem.compiler.engine_writer import EngineWriter\n"
        "with EngineWriter(Path(sys.argv[1])) as writer:\n"
        "    (writer.work / 'deep').mkdir(); (writer.work / 'deep/file').touch()\n"
        "    writer.add('weights', 'weights', bytes(9000))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    result = subprocess.run([sys.executable, "-c", script, str(target)], timeout=60)
    assert result.returncode == -signal.SIGKILL
    assert names(target.parent) == [".x.engine.building"]
    with EngineWriter(target) as writer:
        assert names(writer.work) == []
        writer.add("weights", "weights", b"new")
        writer.finish(manifest())
    assert names(target.parent) == ["x.engine"]
    EngineContainer(target).verify()


def test_two_builds_of_one_file_at_once(target: Path) -> None:
    with EngineWriter(target) as first:
        first.add("weights", "weights", b"first")
        with pytest.raises(BuildFailed, match=r"Another build is writing .*x\.engine"), EngineWriter(target):
            pass
        with EngineWriter(target.with_name("y.engine")) as other:
            other.finish(manifest())
        first.finish(manifest())
    assert names(target.parent) == ["x.engine", "y.engine"]
    container = EngineContainer(target)
    assert bytes(container.view(container.part("weights"))) == b"first"


def test_a_lock_whose_folder_went_away_is_not_taken(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment between opening the lock and locking it, in which another build ends."""
    real = fcntl.flock
    calls: list[int] = []

    def slow(file: IO[bytes], operation: int) -> None:
        if not calls:
            (target.with_name(".x.engine.building") / "lock").unlink()
        calls.append(operation)
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    with EngineWriter(target):
        assert len(calls) == 2
        assert "lock" in names(target.with_name(".x.engine.building"))


def test_what_is_not_ours_is_not_overwritten(target: Path) -> None:
    target.write_bytes(b"GGUF and more")
    with pytest.raises(BuildFailed, match="is there and isn't an engine file"):
        write(target)
    assert target.read_bytes() == b"GGUF and more"
    with pytest.raises(BuildFailed, match="isn't an engine file"):
        check_target(Path("/dev/null"))
    with pytest.raises(BuildFailed, match="is a folder"):
        check_target(target.parent)
    with pytest.raises(BuildFailed, match="Make it first"):
        check_target(target.parent / "no" / "x.engine")
    target.write_bytes(b"")
    write(target)
    EngineContainer(target)


def test_the_same_inputs_are_recognised(target: Path) -> None:
    assert find_existing(target, "f00d") is None
    write(target)
    found = find_existing(target, "f00d")
    assert found is not None
    assert found.fingerprint == "f00d"
    assert find_existing(target, "other") is None
    data = bytearray(target.read_bytes())
    data[found.parts[0].offset] ^= 1
    target.write_bytes(data)
    assert find_existing(target, "f00d") is None
    target.write_bytes(b"not an engine file")
    assert find_existing(target, "f00d") is None


def test_a_number_that_is_none_is_not_written(target: Path) -> None:
    with pytest.raises(BuildFailed, match="mean_kl"), EngineWriter(target) as writer:
        writer.finish(manifest(quality=quality(mean_kl=float("nan"))))
    assert names(target.parent) == []


def test_the_file_replaced_while_served_stays_readable(target: Path) -> None:
    write_engine(target)
    container = EngineContainer(target)
    write(target, fingerprint="new")
    container.verify()
    assert EngineContainer(target).manifest.fingerprint == "new"
