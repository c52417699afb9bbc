"""`tandem`: reads the command line, calls the command, and turns errors into one sentence and an exit code.

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from tandem import __version__
from tandem.core.errors import ConfigError, TandemError


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character shows a question mark, and the command goes on.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
    except ConfigError as error:
        return _fail(error.message, 2)
    except TandemError as error:
        return _fail(error.message, 1)
    except ModuleNotFoundError as error:
        return _fail(_missing_module(error), 1)
    except BrokenPipeError:
        # The reader of our output has gone (`tandem models | head`): not our failure, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}.", 1)
    return status


def _parser() -> argparse.ArgumentParser:
    # Here, so that the module of a command imports what it needs only when `tandem` runs.
    from tandem.cli import bench, build, chat, check, gateway, generate, inspect, models, serve, stress, top

    parser = argparse.ArgumentParser(
        prog="tandem",
        description="Serve large language models at the lowest cost per token.",
        epilog="tandem COMMAND --help says more.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tandem {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (serve, gateway, check, top, chat, generate, models, build, inspect, bench, stress):
        command.register(commands)
    return parser


def _missing_module(error: ModuleNotFoundError) -> str:
    root = (error.name or "").partition(".")[0]
    if root == "tandem":
        raise error
    return f"{root} is not installed, and an engine needs it: pip install 'tandem-llm[engine]'."


def _fail(message: str, status: int) -> int:
    print(f"tandem: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
