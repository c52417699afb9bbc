"""Command lines: our own engine's, and those of others with places to fill in."""

from __future__ import annotations

import sys

import pytest

from tandem.autoscaler.providers.base import EngineSpec, spec_of
from tandem.autoscaler.providers.commands import Address, check_command, command_line, wants_port
from tandem.autoscaler.providers.devices import Placement
from tandem.autoscaler.providers.supervised import describe_code, restart_delay_s
from tandem.config.deployment import PoolConfig
from tandem.config.gateway_replicas import ProcessConfig
from tandem.core.errors import ConfigError

PLACEMENT = Placement((0, 1), (), 0.4)


def test_our_own_engine() -> None:
    spec = EngineSpec("p", "smollm2", engine_options={"block_size": 32, "enable_prefix_caching": False})
    assert not wants_port(spec)
    words = command_line(spec, "p-0", Address(socket="/s/p.sock"), PLACEMENT)
    assert words == [
        sys.executable, "-m", "tandem.cli.main", "serve", "smollm2", "--no-gateway", "--uds", "/s/p.sock",
        "--block-size", "32", "--no-enable-prefix-caching", "--threads", "2", "--memory-utilization", "0.4",
        "--device", "cpu",
    ]  # fmt: skip


def test_a_pool_of_the_configuration() -> None:
    config = PoolConfig(
        name="p", model="m", devices=("cpu",), memory_share=0.3, command="x {port}", engine_options={"block_size": 8}
    )
    assert spec_of(config, {"A": "b"}) == EngineSpec(
        "p", "m", "tandem", "x {port}", ("cpu",), 0.3, {"A": "b"}, {"block_size": 8}
    )


def test_a_template_is_split_before_it_is_filled() -> None:
    """No value becomes two arguments, and no shell sees any of it."""
    spec = EngineSpec(
        "p", "a model; rm -rf /", command="llama-server -m {model} --port {port} --x '{{a b}}' -t {threads}"
    )
    assert command_line(spec, "p-0", Address(port=5), PLACEMENT) == [
        "llama-server", "-m", "a model; rm -rf /", "--port", "5", "--x", "{a b}", "-t", "2",
    ]  # fmt: skip
    assert wants_port(spec)


@pytest.mark.parametrize(
    "command",
    ["serve", "serve {port} {socket}", "serve {port} {secret}", "serve '{port}", "serve {port} {", "serve {0} {port}"],
)
def test_what_is_wrong_with_a_template_is_said_before_the_start(command: str) -> None:
    with pytest.raises(ConfigError, match="command"):
        check_command(command)


def test_a_template_cannot_reach_into_objects() -> None:
    with pytest.raises(ConfigError, match="command"):
        check_command("serve {port} {model.__class__}")


def test_back_off_doubles_up_to_its_limit() -> None:
    config = ProcessConfig(restart_delay_s=1.0, max_restart_delay_s=10.0)
    assert [restart_delay_s(number, config) for number in (0, 1, 2, 3, 4, 5, 5000)] == [1, 1, 2, 4, 8, 10, 10]


def test_exit_codes_in_words() -> None:
    assert describe_code(3) == "exit code 3"
    assert describe_code(137) == "SIGKILL"
    assert describe_code(-15) == "SIGTERM"
    assert describe_code(255) == "exit code 255"
