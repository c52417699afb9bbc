"""`tandem generate`: continue prompts, offline, and print the texts."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tandem.cli.models import DEFAULT_MODEL
from tandem.cli.sampling import add_offline_flags, offline_settings
from tandem.core.errors import InvalidRequest

if TYPE_CHECKING:
    from tandem.engine.outputs import RequestOutput

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "generate", help="continue prompts, offline", usage="tandem generate [PROMPT …] [options]", allow_abbrev=False
    )
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="texts to continue; none: one from each input line"
    )
    parser.add_argument("--model", default=argparse.SUPPRESS, help=f"the model (default: {DEFAULT_MODEL})")
    parser.add_argument("--chat", action="store_true", help="treat each prompt as a user's message")
    parser.add_argument("--json", action="store_true", help="one JSON object a prompt, with tokens and usage")
    add_offline_flags(parser, max_tokens=64)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    config, sampling = offline_settings(args)
    prompts = args.prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise InvalidRequest("There is no prompt: give one, or lines on standard input.")
    from tandem.engine.llm import LLM

    llm = LLM.from_config(config)
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    outputs = llm.chat(conversations, sampling) if args.chat else llm.generate(prompts, sampling)
    for prompt, output in zip(prompts, outputs, strict=True):
        print(
            json.dumps(_record(prompt, output), ensure_ascii=False) if args.json else _text(prompt, output, args.chat)
        )
    return 0


def _text(prompt: str, output: RequestOutput, is_chat: bool) -> str:
    return output.outputs[0].text if is_chat else prompt + output.outputs[0].text


def _record(prompt: str, output: RequestOutput) -> dict[str, Any]:
    answer = output.outputs[0]
    usage = {name: getattr(answer.usage, name) for name in answer.usage.__struct_fields__} if answer.usage else None
    return {"prompt": prompt, **{k: v for k, v in asdict(answer).items() if k != "usage"}, "usage": usage}
