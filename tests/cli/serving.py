"""A real `tandem serve` in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STARTING_LIMIT_S = 90.0


class Served:
    """Starts the command with a free port, and waits until it is ready. The engine itself, unless another is named."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        wait: bool = True,
        command: Sequence[str] = ("serve", "--no-gateway"),
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandem.cli.main", *command, *arguments, "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.lines: list[str] = []
        self._listening = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self._wait_ready()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def _wait_ready(self) -> None:
        self._listening.wait(STARTING_LIMIT_S)
        deadline = time.monotonic() + STARTING_LIMIT_S
        while self.status("/ready") != 200:
            assert self.process.poll() is None, f"the server ended: {self.log}"
            assert time.monotonic() < deadline, f"not ready: {self.log}"
            threading.Event().wait(0.05)

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def status(self, path: str) -> int:
        """The status of a GET; 0 where nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=20) as response:
            text: str = response.read().decode()
        return text

    def end(self, timeout_s: float = 60.0) -> int:
        """The exit code, once it has ended by itself."""
        code = self.process.wait(timeout_s)
        self._reader.join(10)
        return code

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def run_tandem(*arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, stdin: str = "") -> Any:
    """Run a command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "tandem.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=env,
        cwd=cwd,
        input=stdin,
        timeout=120,
    )
