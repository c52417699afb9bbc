"""Bug case cli-01, the part that is configuration: precedence, both spellings, nothing ignored in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.config.deployment import BatchGoal, GatewayConfig, InteractiveGoal, PoolConfig
from tandem.config.describe import settings_of
from tandem.config.engine import EngineConfig
from tandem.config.reading import check_environment, file_table, layered, load_deployment, read_file
from tandem.config.server import ServerConfig
from tandem.core.errors import ConfigError

DESIGN_EXAMPLE = """
version = 1
[gateway]
listen = "127.0.0.1:8000"
database = "sqlite:///tandem.db"
[goals.interactive]
ttft_s = 1.0
tpot_s = 0.05
[goals.batch]
deadline_h = 24
[[pool]]
name = "chat"
model = "smollm2-135m"
engine = "tandem"
provider = "process"
devices = ["cpu:0-1"]
roles = ["interactive", "batch"]
price_per_hour = 0.20
max_output_tokens = 2048
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "tandem.toml"
    path.write_text(text)
    return path


def engine(file: dict[str, Any] | None = None, env: dict[str, str] | None = None, **flags: Any) -> EngineConfig:
    return layered(EngineConfig, file or {}, env or {}, flags)


def test_the_documented_example_is_valid(tmp_path: Path) -> None:
    config = load_deployment(write(tmp_path, DESIGN_EXAMPLE))
    assert config.pool[0].name == "chat"
    assert config.goals.batch.deadline_h == 24


def test_flags_win_over_environment_over_file_over_defaults() -> None:
    file, env = {"block_size": 8}, {"TANDEM_BLOCK_SIZE": "32"}
    assert engine().block_size == 16
    assert engine(file).block_size == 8
    assert engine(file, env).block_size == 32
    assert engine(file, env, block_size=64).block_size == 64


def test_an_explicit_false_beats_a_true_in_the_file() -> None:
    assert engine({"enable_prefix_caching": True}, enable_prefix_caching=False).enable_prefix_caching is False
    assert (
        engine({"enable_prefix_caching": True}, {"TANDEM_ENABLE_PREFIX_CACHING": "false"}).enable_prefix_caching
        is False
    )


def test_dashes_and_underscores_are_the_same(tmp_path: Path) -> None:
    tables = read_file(write(tmp_path, "version = 1\n[engine]\nmax-model-len = 512\n"))
    assert engine(file_table(tables, "engine")).max_model_len == 512


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 1\n[engine]\nno-such-option = 1\n", "no setting 'engine.no_such_option'"),
        ("version = 1\n[engine]\nblock_size = 'big'\n", "tandem.toml:3: engine.block_size: expected `int`"),
        ("version = 1\n[engine]\nblock_size = 12\n", "block_size is 12; it must be a power of two"),
        (
            "version = 1\n[[pool]]\nname = 'a'\nmodel = 'm'\nengine = 'tpu'\n",
            "tandem.toml:5: pool[0].engine: invalid enum",
        ),
        ("version = 2\n", "version = 2"),
        ("[engine]\n", "no version"),
        ("version = ", "not valid TOML"),
        ("version = 1\n[server]\napi_key = 'hunter2'\n", 'write "env:NAME"'),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_deployment(write(tmp_path, text))
    assert said in caught.value.message


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_file(tmp_path / "missing.toml")


def test_a_malformed_variable_is_an_error_and_names_itself() -> None:
    with pytest.raises(ConfigError, match="TANDEM_BLOCK_SIZE is '16k'"):
        engine(env={"TANDEM_BLOCK_SIZE": "16k"})


def test_a_kubernetes_service_called_tandem_does_no_harm() -> None:
    assert layered(ServerConfig, {}, {"TANDEM_PORT": "tcp://10.0.0.7:8000"}, {}).port == 8000


def test_secrets_come_by_reference(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("s3cret\n")
    assert layered(ServerConfig, {"api_key": f"file:{path}"}, {}, {}).api_key == "s3cret"
    assert layered(ServerConfig, {"api_key": "env:K"}, {"K": "abc"}, {}).api_key == "abc"
    assert layered(ServerConfig, {}, {"TANDEM_API_KEY": "direct"}, {}).api_key == "direct"
    with pytest.raises(ConfigError, match="variable NOPE"):
        layered(ServerConfig, {"api_key": "env:NOPE"}, {}, {})
    with pytest.raises(ConfigError, match="can't be read"):
        layered(ServerConfig, {"api_key": "file:/no/such"}, {}, {})


@pytest.mark.parametrize("kind", [EngineConfig, ServerConfig, GatewayConfig, PoolConfig, InteractiveGoal, BatchGoal])
def test_every_setting_is_documented(kind: type[msgspec.Struct]) -> None:
    assert kind.__doc__
    assert [s.name for s in settings_of(kind) if not s.description.endswith((".", "…"))] == []


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("TANDEM_APIKEY", "Did you mean TANDEM_API_KEY"),
        ("TANDEM_MAX_MODEL_LENGTH", "TANDEM_MAX_MODEL_LEN"),
        ("TANDEM_X", "is no setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(variable: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_environment({variable: "1"}, (EngineConfig, ServerConfig))
    assert variable in caught.value.message


def test_settings_and_kubernetes_variables_are_no_mistakes() -> None:
    names = [
        "TANDEM_API_KEY",
        "TANDEM_CACHE",
        "TANDEM_SERVICE_HOST",
        "TANDEM_SERVICE_PORT_HTTP",
        "TANDEM_PORT_8000_TCP",
    ]
    names += ["TANDEM_GATEWAY_SERVICE_PORT", "TANDEM_GATEWAY_PORT_8000_TCP_ADDR", "HOME"]
    check_environment(dict.fromkeys(names, "x"), (EngineConfig, ServerConfig))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 1\n[engine]\nblock_size = 8\nblock-size = 4\n", "block-size is given twice"),
        (
            "version = 1\n[[pool]]\nname = 'a'\nmodel = 'm'\n[[pool]]\nname = 'a'\nmodel = 'm'\n",
            "two pools are called 'a'",
        ),
        ("version = 1\n[[pool]]\nname = 'a'\nmodel = 'm'\n[pool.engine_options]\nblok = 5\n", "blok"),
        ("version = 1\n[gateway]\nlisten = 'x'\n", "must be host:port"),
        ("version = 1\n[engine]\nhash_seed = 'plain'\n", "hash_seed must not stand in the file"),
    ],
)
def test_more_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_deployment(write(tmp_path, text))
    assert said in caught.value.message


def test_the_end_of_a_line_is_no_part_of_a_key() -> None:
    assert layered(ServerConfig, {}, {"TANDEM_API_KEY": "abc\n"}, {}).api_key == "abc"
    with pytest.raises(ConfigError, match="empty"):
        layered(ServerConfig, {}, {"TANDEM_API_KEY": " "}, {})
