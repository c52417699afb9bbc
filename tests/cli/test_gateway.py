"""`tandem gateway`, `check`, `top`, and the gateway that `tandem serve` runs.

Real processes, a real engine, the official client.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.cli.serving import Served, run_tandem

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
SMALL = ("--kv-memory-gib", "0.3", "--max-num-seqs", "8", "--dtype", "float32")
FILE = """\
version = 1
[gateway]
database = "sqlite:///{folder}/tandem.db"
[gateway.store]
data_dir = "{folder}/data"
[gateway.health]
probe_period_s = 0.2
[[pool]]
name = "chat"
model = "smollm2-135m"
aliases = ["{alias}"]
provider = "endpoints"
endpoints = ["{url}"]
price_per_hour = 3.6
"""


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Iterator[Served]:
    with Served("smollm2-135m", *SMALL) as server:
        yield server


class Configured:
    """A gateway over the engine, from a file that tests may change."""

    def __init__(self, engine: Served, folder: Path) -> None:
        self.folder, self.file, self._engine = folder, folder / "tandem.toml", engine
        self.write("france")
        self.served = Served("-c", str(self.file), command=("gateway",), wait=False)
        self.served._listening.wait(30)
        self.wait_for(lambda: '"state":"up"' in self.served.get("/tandem/gateway"))

    def write(self, alias: str, more: str = "") -> None:
        self.file.write_text(FILE.format(folder=self.folder, alias=alias, url=self._engine.url) + more)

    def wait_for(self, condition: Any, limit_s: float = 30.0) -> None:
        until = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < until, self.served.log
            threading.Event().wait(0.05)

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.served.url + "/v1", api_key="none", max_retries=0)

    def models(self) -> list[str]:
        return [model.id for model in self.client.models.list().data]


@pytest.fixture(scope="module")
def gateway(engine: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configured]:
    configured = Configured(engine, tmp_path_factory.mktemp("gateway"))
    with configured.served:
        yield configured


def test_an_answer_by_the_alias_names_who_served_it(gateway: Configured) -> None:
    raw = gateway.client.chat.completions.with_raw_response.create(
        model="france", messages=QUESTION, max_tokens=8, temperature=0
    )
    answer = raw.parse()
    assert answer.model == "france"
    assert answer.choices[0].message.content
    assert raw.headers["X-Tandem-Pool"] == "chat"
    assert raw.headers["X-Tandem-Engine"] == "tandem"
    assert raw.headers["X-Tandem-Class"] == "interactive"


def test_a_stream_says_the_same_without_the_usage_that_nobody_asked_for(gateway: Configured) -> None:
    settings: Any = {"model": "france", "messages": QUESTION, "max_tokens": 8, "temperature": 0}
    plain = gateway.client.chat.completions.create(**settings)
    chunks = list(gateway.client.chat.completions.create(**settings, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == plain.choices[0].message.content
    assert all(chunk.usage is None and chunk.model == "france" for chunk in chunks)


def pool_usage(gateway: Configured) -> dict[str, Any]:
    """When all rows are written."""
    gateway.wait_for(lambda: json.loads(gateway.served.get("/tandem/gateway"))["num_ledger_rows_waiting"] == 0)
    data = json.loads(gateway.served.get("/tandem/usage?group_by=pool"))["data"]
    found: dict[str, Any] = next((item for item in data if item.get("pool") == "chat"), {"output_tokens": 0})
    return found


def test_usage_counts_what_the_engine_reported_and_costs_it(gateway: Configured) -> None:
    before = pool_usage(gateway)["output_tokens"]
    answer = gateway.client.completions.create(model="france", prompt="One, two,", max_tokens=5)
    assert answer.usage is not None
    after = pool_usage(gateway)
    assert after["output_tokens"] == before + answer.usage.completion_tokens
    assert after["cost_micros"] > 0
    assert after["estimated_requests"] == 0


def test_a_batch_runs_through_the_same_engine(gateway: Configured) -> None:
    lines = [
        {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions",
         "body": {"model": "france", "prompt": f"{i} and", "max_tokens": 3}}
        for i in range(3)
    ]  # fmt: skip
    data = "\n".join(json.dumps(line) for line in lines).encode()
    file = gateway.client.files.create(file=("lines.jsonl", data), purpose="batch")
    batch = gateway.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    gateway.wait_for(lambda: gateway.client.batches.retrieve(batch.id).status == "completed", 60)
    done = gateway.client.batches.retrieve(batch.id)
    assert done.output_file_id is not None
    results = [json.loads(line) for line in gateway.client.files.content(done.output_file_id).text.splitlines()]
    assert {result["custom_id"] for result in results} == {"line-0", "line-1", "line-2"}
    assert all(result["response"]["status_code"] == 200 for result in results)


def test_a_decision_is_explained(gateway: Configured) -> None:
    found = json.loads(gateway.served.get("/tandem/route?model=france&prompt_tokens=100&output_tokens=10"))
    assert found["policy"] == "hybrid"
    assert found["chosen"] == found["candidates"][0]["replica"]
    assert found["candidates"][0]["engine_s"] > 0


def test_an_unknown_model_is_refused_in_openais_shape(gateway: Configured) -> None:
    with pytest.raises(openai.NotFoundError, match="france") as raised:
        gateway.client.completions.create(model="gpt-9", prompt="x")
    assert raised.value.code == "model_not_found"


def test_a_reload_takes_over_what_is_right_and_keeps_the_old_where_it_is_not(gateway: Configured) -> None:
    """Once by a signal, once by the change alone."""
    gateway.write("paris")
    gateway.served.process.send_signal(signal.SIGHUP)
    gateway.wait_for(lambda: gateway.models() == ["paris"])
    gateway.write("france", more="pric_per_hour = 1\n")
    gateway.wait_for(lambda: "stays as it was" in gateway.served.log)
    assert "pric_per_hour" in gateway.served.log
    assert gateway.models() == ["paris"]
    gateway.write("france")
    gateway.wait_for(lambda: gateway.models() == ["france"])
    assert gateway.client.completions.create(model="france", prompt="x", max_tokens=1).choices


def test_top_shows_the_pool(gateway: Configured) -> None:
    done = run_tandem("top", gateway.served.url, "--once", env={**os.environ, "COLUMNS": "160"})
    assert done.returncode == 0, done.stderr
    assert "chat" in done.stdout
    assert "up" in done.stdout


def test_top_without_a_gateway_is_one_sentence() -> None:
    done = run_tandem("top", "http://127.0.0.1:9", "--once")
    assert done.returncode == 1
    assert "No gateway answers" in done.stderr
    assert "Traceback" not in done.stderr


def test_replicas_by_flags_alone(engine: Served) -> None:
    with Served("--replica", f"tandem={engine.url}", command=("gateway",)) as served:
        until = time.monotonic() + 30
        while "ready" not in served.lines:
            assert time.monotonic() < until, served.log
            threading.Event().wait(0.05)
        client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list().data] == ["smollm2-135m"]
        assert client.completions.create(model="smollm2-135m", prompt="x", max_tokens=1).choices
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "needs engines"),
        (("--replica", "vllm"), "KIND=URL"),
        (("--replica", "gpu=http://127.0.0.1:1"), "Kinds: tandem, vllm"),
        (("-c", "nowhere.toml"), "can't be read"),
        (("--replica", "vllm=http://127.0.0.1:1", "--policy", "random"), "--policy"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    done = run_tandem("gateway", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 2\n", "version = 1"),
        ("version = 1\n[gateway]\nlisten = 8000\n", ":3"),
        ('version = 1\n[[pool]]\nname = "a"\nmodel = "m"\nprovider = "endpoints"\n', "no endpoints"),
        ('version = 1\n[[pool]]\nname = "a"\nmodel = "m"\nengine = "vllm"\n', "its command"),
        ('version = 1\n[gateway.routing]\npolicy = "best"\n', "policy"),
    ],
)
def test_check_names_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tandem.toml"
    path.write_text(text)
    done = run_tandem("check", str(path))
    assert done.returncode == 2
    assert said in done.stderr
    path.write_text(
        'version = 1\n[[pool]]\nname = "a"\nmodel = "m"\nprovider = "endpoints"\nendpoints = ["http://h:1"]\n'
    )
    assert run_tandem("check", str(path)).returncode == 0


def test_serve_puts_the_gateway_before_its_engine_and_both_end(smollm2: Path, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with Served("smollm2-135m", *SMALL, command=("serve",), env=env, wait=False) as served:
        served._listening.wait(60)
        until = time.monotonic() + 90
        while "ready" not in served.lines:
            assert served.process.poll() is None, served.log
            assert time.monotonic() < until, served.log
            threading.Event().wait(0.05)
        client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
        raw = client.chat.completions.with_raw_response.create(model="smollm2-135m", messages=QUESTION, max_tokens=4)
        assert raw.headers["X-Tandem-Pool"] == "local"
        engines = psutil.Process(served.process.pid).children(recursive=True)
        assert engines
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == 0
        _, alive = psutil.wait_procs(engines, timeout=10)
        assert alive == []


def test_serve_ends_where_its_engine_cannot_start(smollm2: Path, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with Served("smollm2-135m", "--kv-memory-gib", "9000", command=("serve",), env=env, wait=False) as served:
        assert served.end() == 1
        assert "kv_memory_gib is 9000" in served.log


def test_a_key_is_asked_for_where_one_is_given(smollm2: Path, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TANDEM_API_KEY": "a-secret-of-some-length"}
    with Served("smollm2-135m", *SMALL, command=("serve",), env=env, wait=False) as served:
        served._listening.wait(60)
        headers = {"Authorization": "Bearer a-secret-of-some-length"}
        request = urllib.request.Request(served.url + "/v1/models", headers=headers)
        assert served.status("/v1/models") == 401
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200
