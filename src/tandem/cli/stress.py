"""`tandem stress`: raise the load until the goals break, hold it there and beyond, come back, and give a verdict."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tandem.cli.flags import add_settings
from tandem.cli.load import add_target_flags, given, interruptible, keys_of, make_watch, writable
from tandem.loadtest.settings import LoadSettings, TargetSettings

if TYPE_CHECKING:
    from tandem.cli.load import Interrupts
    from tandem.loadtest.stress_report import StressDocument

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_GOALS = ("ttft:1000", "tpot:50")
_OWN = {"num_requests", "duration", "rate", "concurrency", "ramp_to", "replay", "speed", "constant"}
"""Settings of a load that the test decides itself."""


def register(commands: Commands) -> None:
    from tandem.loadtest.stress_settings import StressSettings

    parser = commands.add_parser(
        "stress",
        help="find an endpoint's limit, and what happens beyond it",
        usage="tandem stress URL… [options]",
        epilog="Exit codes: 0 passed, 1 not passed or no measurement, 2 wrong flags, 130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("urls", nargs="+", metavar="URL", help="http://host:port; several are used in turn")
    shown = " ".join(DEFAULT_GOALS)
    parser.add_argument("--goals", nargs="+", default=DEFAULT_GOALS, metavar="GOAL", help=f"(default: {shown})")
    parser.add_argument("--knee", type=float, metavar="RATE", help="The knee, where it is known: it isn't sought.")
    parser.add_argument("--pid", type=int, help="Watch the memory of this process and its children in the soak.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write everything.")
    parser.add_argument("--html", type=Path, metavar="FILE", help="Write one page with plots; opens offline.")
    add_settings(parser, StressSettings, "phases", skip=set())
    add_settings(parser, LoadSettings, "load", skip=_OWN)
    add_target_flags(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from tandem.loadtest.html import html_report

    writable(args.json, args.html)
    found = interruptible(lambda interrupts: _measure(args, interrupts))
    if found is None:
        print("tandem: interrupted before anything was measured.", file=sys.stderr)
        return 130
    text, document = found
    print(text)
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
    if args.html and document.measured.runs:
        args.html.write_text(html_report(document.measured))
    return 130 if document.result["is_partial"] else 0 if document.passed else 1


async def _measure(args: argparse.Namespace, interrupts: Interrupts) -> tuple[str, StressDocument]:
    from tandem.loadtest.bench import reached, warm_up
    from tandem.loadtest.goals import parse_goals
    from tandem.loadtest.memory import metrics_probe, process_probe
    from tandem.loadtest.stress import stress
    from tandem.loadtest.stress_report import stress_document, text_stress
    from tandem.loadtest.stress_settings import StressSettings

    load, target, goals = given(args, LoadSettings), given(args, TargetSettings), parse_goals(args.goals)
    settings = given(args, StressSettings)
    probe = process_probe(args.pid) if args.pid is not None else None
    async with reached(args.urls, target, keys_of(args), patience_s=load.silence) as found:
        await warm_up(found, load)
        interrupts.has_begun = True
        result = await stress(
            found,
            load,
            settings,
            goals,
            probe=probe or metrics_probe(found.client),
            knee_rate=args.knee,
            stop=interrupts.stop,
            watch=make_watch(),
        )
        document = stress_document(result, urls=args.urls, model=found.model, endpoint=target.endpoint, goals=goals)
        return text_stress(result), document
