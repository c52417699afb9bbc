"""A stress test's outcome: as text, and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tandem.loadtest.document import Document, make_document
from tandem.loadtest.goals import Goals
from tandem.loadtest.stress import StressResult


class StressDocument(msgspec.Struct, kw_only=True):
    """`runs` of `measured`: the steps of the search, then the run past the knee, then the soak."""

    passed: bool
    result: dict[str, Any]
    measured: Document


def has_passed(result: StressResult) -> bool:
    return bool(result.checks) and not result.is_partial and all(check.passed for check in result.checks)


def text_stress(result: StressResult) -> str:
    """Phases, then checks, then one word."""
    knee = result.knee
    lines = ["PARTIAL: the test was interrupted."] if result.is_partial else []
    found = f"Knee: {knee.rate:.3g} requests/s"
    lines.append(f"{found}; at {knee.broke_at:.3g}, {knee.why}." if knee.broke_at else f"{found}.")
    if result.phases:
        lines.append(
            f"{'phase':<18}{'rate':>8}{'sent':>7}{'ok':>7}{'failed':>8}{'open':>6}{'goodput':>9}{'median TTFT':>14}"
        )
    for phase in result.phases:
        ttft = "–" if phase.median_ttft_ms is None else f"{phase.median_ttft_ms:.0f} ms"
        counts = f"{phase.total:>7}{phase.ok:>7}{phase.errors:>8}{phase.incomplete:>6}"
        lines.append(f"{phase.name:<18}{phase.rate:>8.2f}{counts}{phase.goodput:>9.2f}{ttft:>14}")
        lines += [f"    {count} × {problem}" for problem, count in list(phase.problems.items())[:3]]
    lines += [f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}" for check in result.checks]
    lines.append("Verdict: " + ("passed" if has_passed(result) else "not passed"))
    return "\n".join(lines)


def stress_document(
    result: StressResult, *, urls: Sequence[str], model: str, endpoint: str, goals: Goals
) -> StressDocument:
    runs = [run for run in (*result.steps, result.run, result.soak) if run is not None and run.records]
    measured = make_document(runs, urls=urls, model=model, endpoint=endpoint, goals=goals, knee=result.knee)
    names = ("knee", "phases", "recovery_s", "memory", "checks", "is_partial")
    shown = {name: msgspec.to_builtins(getattr(result, name)) for name in names}
    return StressDocument(passed=has_passed(result), result=shown, measured=measured)
