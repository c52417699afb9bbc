"""The spool: what is appended is on disk, torn lines are passed over, the files of the dead are taken over."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tandem.gateway.store.spool import Spool, read_rows
from tests.gateway.rows import ledger_row


def ids(path: Path) -> list[str]:
    return [row.request_id for row in read_rows(path)]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    rows = [ledger_row(f"r{number}", model='naïve\n"m"') for number in range(3)]
    spool.append(rows[:2])
    spool.append(rows[2:])
    (path,) = spool.take()
    assert list(read_rows(path)) == rows
    assert path.stat().st_mode & 0o077 == 0


def test_a_torn_last_line_and_a_damaged_one_cost_only_themselves(tmp_path: Path) -> None:
    lines = [msgspec.json.encode(ledger_row(name)) for name in "abc"]
    path = tmp_path / "ledger-1.jsonl"
    path.write_bytes(lines[0] + b"\n" + b"\xff\xfe garbage\n" + lines[1] + b"\n" + lines[2][:40])
    assert ids(path) == ["a", "b"]


def test_what_is_being_taken_is_not_appended_to(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([ledger_row("a")])
    for path in spool.take():
        spool.append([ledger_row("b")])
        assert ids(path) == ["a"]
        path.unlink()
    assert spool.has_own()
    assert [ids(path) for path in spool.take()] == [["b"]]


def test_a_living_process_keeps_its_file_and_a_dead_ones_is_taken_over(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from tandem.gateway.store.spool import Spool\n"
        "from tests.gateway.rows import ledger_row\n"
        "spool = Spool(pathlib.Path(sys.argv[1]))\n"
        "spool.append([ledger_row('theirs')])\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    ours = Spool(tmp_path)
    assert list(ours.take()) == []
    process.kill()
    process.wait()
    assert [ids(path) for path in ours.take()] == [["theirs"]]
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()


def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.append([ledger_row("a")])
    real = os.fsync

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        spool.append([ledger_row("b")])
    monkeypatch.setattr(os, "fsync", real)
    spool.append([ledger_row("c")])
    assert [ids(path) for path in spool.take()] == [["a", "c"]]
