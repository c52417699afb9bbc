"""`tandem bench`: measure an endpoint under a load, and say what came of it; `tandem bench compare`: two reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.cli.flags import add_settings
from tandem.cli.load import add_target_flags, given, interruptible, keys_of, make_watch, writable
from tandem.core.errors import ConfigError
from tandem.loadtest.settings import LoadSettings, TargetSettings

if TYPE_CHECKING:
    from tandem.cli.load import Interrupts
    from tandem.loadtest.document import Document
    from tandem.loadtest.goals import Goals

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
tandem bench compare A.json B.json shows the difference of two reports and whether it is noise.
Exit codes: 0 measured, 1 too many failures or no measurement, 2 wrong flags, 130 interrupted (partial report)."""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="load-test an OpenAI-compatible endpoint",
        usage="tandem bench URL… [options]\n       tandem bench compare A.json B.json",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("urls", nargs="+", metavar="URL", help="http://host:port; several are used in turn")
    output = parser.add_argument_group("report")
    output.add_argument("--json", type=Path, metavar="FILE", help="Write everything, each request included.")
    output.add_argument("--html", type=Path, metavar="FILE", help="Write one page with plots; opens offline.")
    output.add_argument("--csv", type=Path, metavar="FILE", help="Write one line for each request.")
    output.add_argument("--goodput", nargs="+", default=[], metavar="GOAL", help="ttft:MS tpot:MS e2el:MS")
    sweep = parser.add_argument_group("sweep")
    sweep.add_argument("--sweep", metavar="RATES", help="Rates such as 1,2,4,8, or auto: until the knee is found.")
    sweep.add_argument("--sweep-concurrency", metavar="LEVELS", help="Closed loops such as 1,2,4,8.")
    add_settings(parser, LoadSettings, "load", skip=set())
    add_target_flags(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.urls[0] == "compare":
        return _compare(args.urls[1:])
    from tandem.loadtest.document import csv_text, write_json
    from tandem.loadtest.goals import parse_goals
    from tandem.loadtest.html import html_report

    load, target, goals = given(args, LoadSettings), given(args, TargetSettings), parse_goals(args.goodput)
    writable(args.json, args.html, args.csv)
    document = interruptible(lambda interrupts: _measure(args, load, target, goals, interrupts))
    if document is None:
        print("tandem: interrupted before anything was measured.", file=sys.stderr)
        return 130
    print(_text(document))
    if args.json:
        write_json(args.json, document)
    if args.html:
        args.html.write_text(html_report(document))
    if args.csv:
        args.csv.write_text(csv_text(document))
    return _status(document, load)


async def _measure(
    args: argparse.Namespace, load: LoadSettings, target: TargetSettings, goals: Goals, interrupts: Interrupts
) -> Document | None:
    from tandem.loadtest.bench import measure_once, reached, warm_up
    from tandem.loadtest.document import make_document
    from tandem.loadtest.sweep import sweep_concurrency, sweep_rates
    from tandem.loadtest.workload import make_load
    from tandem.traffic.text import TextMaker

    rates = _rates(args.sweep)
    levels = [int(level) for level in _numbers(args.sweep_concurrency, "--sweep-concurrency")]
    make_load(load, TextMaker(load.seed))  # a mistake in the user's file is found before anybody is asked anything
    watch, stop, knee = make_watch(), interrupts.stop, None
    async with reached(args.urls, target, keys_of(args), patience_s=load.silence) as found:
        await warm_up(found, load)
        interrupts.has_begun = True
        if args.sweep:
            runs, knee = await sweep_rates(found, load, rates, goals, stop=stop, watch=watch)
        elif levels:
            runs = await sweep_concurrency(found, load, levels, stop=stop, watch=watch)
        else:
            runs = [await measure_once(found, load, stop=stop, watch=watch)]
        runs = [run for run in runs if run.records]
        if not runs:
            return None
        runs[0].notes[:0] = found.notes
        return make_document(runs, urls=args.urls, model=found.model, endpoint=target.endpoint, goals=goals, knee=knee)


def _text(document: Document) -> str:
    from tandem.loadtest.report import text_report, text_sweep

    if len(document.runs) == 1 and document.knee is None:
        run = document.runs[0]
        return text_report(run.summary, run.notes, is_partial=run.partial)
    return text_sweep(document)


def _status(document: Document, load: LoadSettings) -> int:
    if document.partial:
        print("tandem: interrupted; the report is partial.", file=sys.stderr)
        return 130
    if document.knee is not None:
        return 0  # failures beyond the knee are what a sweep looks for
    worst = max(run.summary.error_rate for run in document.runs)
    if worst > load.max_error_rate:
        print(
            f"tandem: {worst:.1%} of the requests failed, at most {load.max_error_rate:.1%} allowed.", file=sys.stderr
        )
        return 1
    return 0


def _compare(paths: Sequence[str]) -> int:
    from tandem.loadtest.compare import compare, text_comparison, warnings
    from tandem.loadtest.document import read_json

    if len(paths) != 2:
        raise ConfigError(f"compare takes two reports of tandem bench --json; {len(paths)} given.")
    first, second = (read_json(Path(path)) for path in paths)
    print(text_comparison(compare(first, second), warnings(first, second)))
    return 0


def _rates(text: str | None) -> list[float] | None:
    """None: find them."""
    return None if text == "auto" else _numbers(text, "--sweep")


def _numbers(text: str | None, flag: str) -> list[float]:
    if text is None:
        return []
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise ConfigError(
            f"{flag} is {text!r}; it must be numbers above 0 such as 1,2,4" + " or auto." * (flag == "--sweep")
        )
    return found
