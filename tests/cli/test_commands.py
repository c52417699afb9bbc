"""The command line: bug case cli-01, and that every mistake is one sentence and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem import __version__
from tests.cli.serving import run_tandem
from tests.engine.models.tiny import llama_config, save_random

FILE = """version = 1
[server]
port = 9001
[engine]
max-model-len = 512
enable-prefix-caching = true
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(FILE)
    return path


def printed(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    result = run_tandem("serve", "m", *arguments, "--print-config", env={**os.environ, **(env or {})})
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_both_spellings_of_the_config_flag_are_equal(config: Path) -> None:
    shown = printed("--config", str(config))
    assert shown == printed(f"--config={config}")
    assert (shown["server"]["port"], shown["engine"]["max_model_len"]) == (9001, 512)
    assert shown["engine"]["model"] == "m"


def test_a_flag_wins_in_either_order_and_the_rest_is_the_files(config: Path) -> None:
    for arguments in (("--config", str(config), "--port", "9002"), ("--port", "9002", "--config", str(config))):
        shown = printed(*arguments)
        assert (shown["server"]["port"], shown["engine"]["max_model_len"]) == (9002, 512)


def test_the_environment_lies_between(config: Path) -> None:
    env = {"TANDEM_PORT": "9003", "TANDEM_MAX_MODEL_LEN": "256"}
    shown = printed("--config", str(config), "--port", "9002", env=env)
    assert (shown["server"]["port"], shown["engine"]["max_model_len"]) == (9002, 256)


def test_an_explicit_no_beats_a_yes_in_the_file(config: Path) -> None:
    assert printed("--config", str(config))["engine"]["enable_prefix_caching"] is True
    assert printed("--config", str(config), "--no-enable-prefix-caching")["engine"]["enable_prefix_caching"] is False


def test_a_key_is_not_shown(config: Path) -> None:
    shown = printed(env={"TANDEM_API_KEY": "hunter2"})
    assert shown["server"]["api_key"] == "(set)"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["serve", "--config", "missing.toml"], 2, "missing.toml can't be read"),
        (["serve", "--config"], 2, "expected one argument"),
        (["serve", "--max-model-len", "2k"], 2, "invalid int value: '2k'"),
        (["serve", "--no-such-option"], 2, "unrecognized arguments: --no-such-option"),
        (["serve", "--block-size", "12"], 2, "block_size is 12; it must be a power of two"),
        (["serve", "--port", "70000"], 2, "port"),
        (["serve", "no-such-model"], 1, "There is no model 'no-such-model'"),
        (["serve", "smollm2-135"], 1, "Did you mean smollm2-135m?"),
        (["serve", "/no/such.gguf"], 1, "/no/such.gguf doesn't exist"),
        (["generate", "--max-tokens", "-1", "hi"], 1, "max_tokens is -1"),
        (["generate"], 1, "There is no prompt"),
        (["nonsense"], 2, "invalid choice"),
        ([], 2, "COMMAND"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], status: int, said: str) -> None:
    result = run_tandem(*arguments)
    assert result.returncode == status
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_key_in_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(FILE + "no-such-option = 1\n")
    result = run_tandem("serve", "m", "--config", str(path), "--print-config")
    assert result.returncode == 2
    assert "no_such_option" in result.stderr


def test_models_that_can_not_be_served_are_one_sentence_and_leave_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_random(llama_config(), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    before = sorted(folder.iterdir())
    for changes, said in (({}, "model.safetensors"), ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM")):
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))
        result = run_tandem("generate", "hi", "--model", str(folder))
        assert result.returncode == 1, result.stderr
        assert said in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stderr.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_a_misspelt_variable_is_named() -> None:
    result = run_tandem("serve", "m", "--print-config", env={**os.environ, "TANDEM_APIKEY": "x"})
    assert result.returncode == 2
    assert "Did you mean TANDEM_API_KEY?" in result.stderr


def test_output_that_can_not_be_written_is_one_sentence(smollm2: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tandem.cli.main", "models"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in result.stderr
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = run_tandem("generate", "日本", "--max-tokens", "4", env=ascii_only)
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)


def test_version_and_help() -> None:
    assert run_tandem("--version").stdout == f"tandem {__version__}\n"
    text = run_tandem("serve", "--help").stdout
    for flag in ("--block-size", "--max-num-batched-tokens", "--api-key", "--no-enable-prefix-caching", "--config"):
        assert flag in text


def test_models_lists_the_catalogue(smollm2: Path) -> None:
    result = run_tandem("models")
    assert result.returncode == 0
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("smollm2-135m")]
    assert line.endswith(str(smollm2))
    assert "Apache-2.0" in line


def test_pull_prints_the_path(smollm2: Path) -> None:
    assert run_tandem("pull").stdout == f"{smollm2}\n"


def test_generate_reads_lines_and_prints_texts(smollm2: Path) -> None:
    result = run_tandem("generate", "--max-tokens", "8", "--json", stdin="The capital of France is\nOne, two, three,\n")
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [r["prompt"] for r in records] == ["The capital of France is", "One, two, three,"]
    assert "Paris" in records[0]["text"]
    assert records[0]["usage"]["num_output_tokens"] == len(records[0]["token_ids"]) == 8


def test_chat_answers_line_by_line(smollm2: Path) -> None:
    result = run_tandem(
        "chat", "--max-tokens", "24", stdin="What is the capital of France?\n/clear\n\nAnd of Italy?\n/quit\nx\n"
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert len(result.stdout.strip().splitlines()) >= 2
