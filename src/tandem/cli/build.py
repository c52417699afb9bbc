"""`tandem build`: compile a model ahead of time into one engine file."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from tandem.cli.flags import add_settings
from tandem.config.build import BuildOptions
from tandem.config.describe import settings_of
from tandem.core.errors import BuildFailed, ConfigError, ModelUnsupported, TandemError

if TYPE_CHECKING:
    from tandem.compiler.progress import StageProgress
    from tandem.engine.loading.engine_manifest import EngineManifest

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "build",
        help="compile a model into an engine file",
        usage="tandem build MODEL -o ENGINE [options]",
        allow_abbrev=False,
    )
    parser.add_argument("model", help="a catalogue name, a folder in Hugging Face's layout, a .gguf file, or a hub id")
    parser.add_argument("-o", "--output", required=True, metavar="ENGINE", help="the engine file to write")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON when done")
    add_settings(parser, BuildOptions, "build", skip={"model", "output"})
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    options = _options(args)
    with _ended_by_signals():
        from tandem.compiler.engine_writer import check_target
        from tandem.compiler.progress import ConsoleStages

        check_target(options.path)
        _check_model(options)
        before = _identity(options.path)
        manifest = _build(options, ConsoleStages())
    _report(options.path, manifest, is_new=_identity(options.path) != before, as_json=args.json)
    return 0


def _options(args: argparse.Namespace) -> BuildOptions:
    """From the flags alone: what an engine file holds doesn't depend on the environment."""
    names = {setting.name for setting in settings_of(BuildOptions)}
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    try:
        return msgspec.convert(given, BuildOptions)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"--{where.strip('`').replace('_', '-')}: {text[0].lower()}{text[1:]}.") from error


def _check_model(options: BuildOptions) -> None:
    """Fetched here if need be; and what can't be built is found before torch is loaded."""
    from tandem.engine.loading.engine_container import EngineContainer, is_engine_file
    from tandem.engine.loading.opening import refuse_onnx
    from tandem.engine.loading.progress import ConsoleProgress
    from tandem.engine.loading.sources import resolve

    path = resolve(options.model, progress=ConsoleProgress())
    refuse_onnx(path)
    if path.is_file() and is_engine_file(path):
        source = EngineContainer(path).manifest.source.name
        raise ModelUnsupported(f"{path} is an engine file already; give the model it was built from: {source}")


def _build(options: BuildOptions, progress: StageProgress) -> EngineManifest:
    """Whatever goes wrong is one sentence: the parts below are the compiler's, and raise what they like."""
    try:
        # Only here: torch is heavy, and a wrong flag should fail before it is loaded.
        from tandem.compiler.build import build_engine_file

        return build_engine_file(options, progress)
    except ConfigError as error:  # the command line was right; what it asks for can't be had with this model, or here
        raise BuildFailed(error.message) from error
    except (TandemError, ModuleNotFoundError, BrokenPipeError):
        raise
    except OSError as error:
        raise BuildFailed(_refused_by_system(error)) from error
    except MemoryError as error:
        raise BuildFailed(f"There isn't enough memory to build {options.model}.") from error
    except Exception as error:
        first = (str(error).strip() or "no more is known").splitlines()[0].rstrip(".")
        raise BuildFailed(f"{options.model} can't be built: {type(error).__name__}: {first}.") from error


def _refused_by_system(error: OSError) -> str:
    place = error.filename or "a temporary file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full: {place} can't be written. Free some space, or set TMPDIR elsewhere."
    return f"{place}: {error.strerror or error}."


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end the build as Ctrl-C does: what was begun is removed on the way out."""
    previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        print("tandem: the build was interrupted; nothing was written.", file=sys.stderr)
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has this name: a build puts a new one there."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _report(target: Path, manifest: EngineManifest, *, is_new: bool, as_json: bool) -> None:
    from tandem.cli.inspect import quality_line, quantization_line, size
    from tandem.engine.loading.engine_manifest import encode_manifest

    if as_json:
        print(encode_manifest(manifest, indent=2).decode())
        return
    if not is_new:
        print(f"{target} is up to date: it was built from the same inputs. --force builds it all the same.")
        return
    print(f"{target}: {manifest.source.name}, {quantization_line(manifest)}, {size(target.stat().st_size)}")
    print(f"quality: {quality_line(manifest)}")
    print(f"built in {sum(manifest.build_s.values()):.0f} s; serve it with: tandem serve {target}")
