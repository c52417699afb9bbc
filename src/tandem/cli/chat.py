"""`tandem chat`: a conversation in the terminal, answers shown as they come."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tandem.cli.models import DEFAULT_MODEL
from tandem.cli.sampling import add_offline_flags, offline_settings
from tandem.core.errors import InvalidRequest

if TYPE_CHECKING:
    from tandem.core.sampling_params import SamplingParams
    from tandem.engine.llm import LLM

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

HELP = "/clear forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer."


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "chat", help="talk to a model in the terminal", usage="tandem chat [MODEL] [options]", allow_abbrev=False
    )
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, help=f"the model (default: {DEFAULT_MODEL})")
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_offline_flags(parser, max_tokens=512)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    config, sampling = offline_settings(args)
    from tandem.engine.llm import LLM

    llm = LLM.from_config(config)
    if sys.stdin.isatty():
        print(f"{llm.info.model}, {llm.info.runner}, context {llm.info.max_model_len:,} tokens. {HELP}")
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(opening)
    while (line := _read_line()) is not None:
        if line == "/quit":
            break
        if line == "/clear":
            messages = list(opening)
        elif line.startswith("/") and line.removeprefix("/").isalpha():
            print(HELP)
        elif line:
            messages = _turn(llm, messages, line, sampling)
    return 0


def _read_line() -> str | None:
    """What the user says next; None at the end of the input."""
    try:
        return input("\n> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _turn(llm: LLM, messages: list[dict[str, str]], line: str, sampling: SamplingParams) -> list[dict[str, str]]:
    """Ask, show the answer as it comes, and return the conversation with it. A refused question is not kept."""
    asked = [*messages, {"role": "user", "content": line}]
    # Every turn its own random numbers, and still reproducible.
    turn = sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + len(asked))
    parts: list[str] = []
    started_s = time.monotonic()
    stream = llm.stream_chat(asked, turn)
    try:
        for text in stream:
            parts.append(text)
            print(text, end="", flush=True)
    except InvalidRequest as error:
        print(f"tandem: {error.message} /clear begins anew.", file=sys.stderr)
        return messages
    except KeyboardInterrupt:
        stream.close()
        print(" [stopped]", end="")
    print()
    if sys.stdin.isatty():
        print(f"\033[2m{time.monotonic() - started_s:.1f} s\033[0m")
    return [*asked, {"role": "assistant", "content": "".join(parts)}]
