"""Runs the parts, one after another, and says what it found as JSON; see the package's own words."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import benchmarks.device as about

ROOT = Path(__file__).resolve().parents[2]
DRY_CHECKS = 2


class Parts:
    """What was found so far, and the time that is left."""

    def __init__(self, minutes: float, output: Path | None) -> None:
        self.found: dict[str, Any] = {}
        self.failed = False
        self._end = time.monotonic() + minutes * 60
        self._output = output

    def run(self, name: str, least_s: float, measure: Callable[[], Any]) -> Any:
        """None where it fails, or fewer than `least_s` seconds are left. Either is recorded, and the rest goes on."""
        left, begin = self._end - time.monotonic(), time.monotonic()
        signal.signal(signal.SIGALRM, _stop)
        result = None
        if left < least_s:
            self.found[name] = {"skipped": f"it takes about {least_s:.0f} s, and {left:.0f} s are left"}
        else:
            try:
                signal.setitimer(signal.ITIMER_REAL, left)
                result = self.found[name] = measure()
            except Exception as error:
                traceback.print_exc()
                self.found[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
                self.failed = True
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self.found.setdefault("seconds", {})[name] = round(time.monotonic() - begin, 1)
        _free()
        if self._output is not None:
            self._output.write_text(json.dumps(self.found, indent=1) + "\n")
        print(f"{name}: {json.dumps(self.found[name])}", flush=True)
        return result


def _stop(number: int, frame: object) -> None:
    raise TimeoutError("the time was up")


def _free() -> None:
    """A runner's graphs and memory, before the next one is made."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _checks(parts: Parts, device: Any, only: int | None) -> list[dict[str, Any]]:
    from benchmarks.device.checks import run_checks

    done = run_checks(device, only)
    parts.failed |= not all(check.passes for check in done)
    return [check._asdict() | {"passes": check.passes} for check in done]


def _measure(parts: Parts, device: Any, sizes: Any, *, is_compiled: bool) -> None:
    from benchmarks.device import pieces, speed
    from benchmarks.device.common import Floors, measure_floors

    floors: Floors | None = None

    def find_floors() -> dict[str, float]:
        nonlocal floors
        floors = measure_floors(device, sizes)
        return {"bandwidth_tb_s": floors.bytes_s / 1e12, "product_tflop_s": floors.operations_s / 1e12}

    parts.run("floors", 5, find_floors)
    known = floors or Floors(4e12, 8e14)  # what is written on an H200, if even that fails
    parts.run("paged", 60, lambda: speed.paged(device, sizes, known))
    parts.run("tables", 15, lambda: pieces.tables(device, sizes))
    parts.run("products", 45, lambda: pieces.products(device, sizes, known))
    for name, kind, least_s in (("bf16", None, 120), ("fp8", "fp8", 45), ("int4", "int4", 45)):

        def measure(kind: str | None = kind, is_compiled: bool = is_compiled) -> Any:
            return speed.compiled(kind, device, sizes, known, is_compiled=is_compiled)

        if parts.run(f"compiled {name}", least_s, measure) is None:
            parts.run(f"fused {name}", 30, partial(measure, is_compiled=False))


def print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{title}\n" + "".join(f"{name:>20}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:20,.3f}" if isinstance(value, float) else f"{value!s:>20}" for value in row.values()))


def _print_all(found: dict[str, Any]) -> None:
    for name, part in found.items():
        rows = {name: part} if isinstance(part, list) else part if isinstance(part, dict) else {}
        for title, value in rows.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                print_table(name if title == name else f"{name}: {title}", value)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="correctness only, on the CPU in Triton's interpreter")
    parser.add_argument(
        "--dry-run", action="store_true", help="all parts in tiny sizes on the CPU; figures mean nothing"
    )
    parser.add_argument("--layers", type=int, default=32, help="of the model that is measured")
    parser.add_argument("--minutes", type=float, default=7.5, help="no part begins that wouldn't end by then")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON, renewed after each part")
    return parser.parse_args(arguments)


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    on_cpu = arguments.smoke or arguments.dry_run
    if on_cpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, here and nowhere else
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    import dataclasses

    import torch
    from benchmarks.device.common import TINY, Sizes

    if not on_cpu and not torch.cuda.is_available():
        print("torch sees no GPU here; --smoke checks the kernels without one, --dry-run the script", file=sys.stderr)
        return 1
    device = torch.device("cpu" if on_cpu else "cuda")
    parts = Parts(60.0 if on_cpu else arguments.minutes, arguments.output)
    parts.found |= {"torch": torch.__version__, "dry_run": arguments.dry_run}
    parts.found["device"] = "cpu" if on_cpu else torch.cuda.get_device_name(device)
    torch.manual_seed(0)
    parts.run("checks", 0, lambda: _checks(parts, device, DRY_CHECKS if arguments.dry_run else None))
    if not arguments.smoke:
        sizes = TINY if arguments.dry_run else dataclasses.replace(Sizes(), layers=arguments.layers)
        _measure(parts, device, sizes, is_compiled=not on_cpu)
        _print_all({name: part for name, part in parts.found.items() if name != "checks"})
    return 1 if parts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
