"""A PostgreSQL of the tests' own: a private cluster in a temporary folder, run by an unprivileged user."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest


def find_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class Cluster:
    """It may be stopped and started again. One database, emptied for each test that asks."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._run("initdb", "-D", self._data, "-U", "tandem", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def start(self) -> None:
        settings = f"-c listen_addresses='' -c unix_socket_directories='{self._folder}' -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-w", "-o", settings, "-l", str(self._folder / "log"), "start")

    def stop(self) -> None:
        """At once: connections break."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def new_database(self) -> str:
        """The address of an empty one. What the last test left is gone."""
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = %s"
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(others, ("postgres",))
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self._address("postgres")

    def _address(self, name: str) -> str:
        return f"postgresql://tandem@/{name}?host={self._folder}"

    def _run(self, name: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._binaries / name), *arguments]
        done = subprocess.run(
            command, user=self._user, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60
        )
        assert done.returncode == 0, f"{name} failed"


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Skips the test where PostgreSQL isn't installed."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    # Not pytest's folder: its path may be closed to other users, and is too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    # Also where pytest itself breaks off: a server would outlive it.
    atexit.register(_remove, binaries, folder)
    try:
        yield Cluster(binaries, folder)
    finally:
        atexit.unregister(_remove)
        _remove(binaries, folder)


def _remove(binaries: Path, folder: Path) -> None:
    user = "nobody" if os.geteuid() == 0 else None
    stop = [str(binaries / "pg_ctl"), "-D", str(folder / "data"), "-w", "-m", "immediate", "stop"]
    subprocess.run(stop, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    shutil.rmtree(folder, ignore_errors=True)
