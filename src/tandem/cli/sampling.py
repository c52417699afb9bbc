"""What the commands that generate offline share: flags for the engine and for how tokens are chosen."""

from __future__ import annotations

import argparse

from tandem.cli.flags import add_config_flag, add_settings, collect
from tandem.config.engine import EngineConfig
from tandem.core.sampling_params import SamplingParams


def add_offline_flags(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """All but the model, which each command takes in its own way."""
    add_config_flag(parser)
    _add_sampling_flags(parser, max_tokens)
    add_settings(parser, EngineConfig, "engine", skip={"model", "seed"})


def offline_settings(args: argparse.Namespace) -> tuple[EngineConfig, SamplingParams]:
    """The engine's settings and the requests'. `--seed` is the request's here, not the engine's."""
    sampling = _sampling_from(args)
    del args.seed
    return collect(args, EngineConfig, "engine"), sampling


def _add_sampling_flags(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    group = parser.add_argument_group("generation")
    group.add_argument(
        "--max-tokens", type=int, default=max_tokens, help="most tokens to generate (default: %(default)s)"
    )
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    group.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens up to this probability")
    group.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens")
    group.add_argument("--seed", type=int, help="reproduces random choices")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop at this text; may be repeated")


def _sampling_from(args: argparse.Namespace) -> SamplingParams:
    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        stop=tuple(args.stop),
    )
