"""What the gateway costs, in one run beside others: a request, a streamed chunk, a long prompt, memory.

    python -m benchmarks.gateway [--seconds 4] [--streams 1000] [--peers DIR] [--only tandem,bare]

The gateway has a core of its own; the static upstream and the clients share the other. Tandem runs with everything on:
the hybrid policy, an API key with limits, the ledger in SQLite, metrics. `--peers DIR`: a virtual environment with
`vllm-router` and `litellm` installed; those not found are left out. CPU time is the gateway process's own, which other
load on the machine hardly changes; latencies and rates are the best of three short runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from benchmarks.gateway_load import CHUNKS_PER_S, Figures, Upstream, closed_loop, make_request, open_loop, streams

KEY = "sk-benchmark-0123456789"
ROLES = ("upstream", "tandem", "bare")


def chat(prompt: str, **fields: object) -> bytes:
    body = {"model": "bench", "messages": [{"role": "user", "content": prompt}], **fields}
    return json.dumps(body, separators=(",", ":")).encode()


# Servers, each a process of its own.


async def serve_upstream(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(loop), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


async def serve_bare(port: int, upstream_port: int) -> None:
    """The forty lines that anybody would write: aiohttp at both ends, nothing looked at."""
    import aiohttp
    from aiohttp import web

    async def forward(request: web.Request) -> web.StreamResponse:
        url = f"http://127.0.0.1:{upstream_port}{request.path}"
        async with session.post(url, data=await request.read()) as answer:
            if answer.content_type != "text/event-stream":
                return web.Response(body=await answer.read(), content_type=answer.content_type)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/v1/chat/completions", forward)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


async def serve_tandem(port: int, upstream_port: int) -> None:
    from prometheus_client import CollectorRegistry

    from tandem.config.gateway_admission import AdmissionConfig
    from tandem.config.gateway_routing import RoutingConfig
    from tandem.config.gateway_store import KeyConfig
    from tandem.core.types import ServiceClass
    from tandem.gateway.admission.admission import Admission
    from tandem.gateway.app import make_app
    from tandem.gateway.context import Goal
    from tandem.gateway.gateway import Gateway, Parts
    from tandem.gateway.keys import StoredKeys
    from tandem.gateway.ledger import StoredLedger
    from tandem.gateway.limits import StoredLimits
    from tandem.gateway.parsing import ParserConfig
    from tandem.gateway.replicas.fetch import upstream_fetch
    from tandem.gateway.replicas.pool import Pool
    from tandem.gateway.replicas.pools import Pools
    from tandem.gateway.routing.coserving import Room
    from tandem.gateway.routing.facts import PoolFacts
    from tandem.gateway.routing.policies import PolicyParts, make_policy
    from tandem.gateway.routing.predictions import PredictionScores
    from tandem.gateway.routing.replica_models import ReplicaModels
    from tandem.gateway.serving import serve
    from tandem.gateway.store.database import Database
    from tandem.gateway.upstream.client import UpstreamClient

    folder = Path(tempfile.mkdtemp(prefix="gateway-bench-"))
    (folder / "key").write_text(KEY)
    database = Database(f"sqlite:///{folder}/state.db")
    await database.start()
    key = KeyConfig(name="bench", key=f"file:{folder}/key", requests_per_minute=10**9, tokens_per_minute=10**12)
    keys = StoredKeys(database, [key])
    await keys.start()
    ledger = StoredLedger(database, folder / "spool")
    await ledger.start()
    pool = Pool("bench", "bench", "openai", price_per_hour=0.2, max_concurrency=4096)
    pool.replicas += [pool.make_replica(f"http://{host}:{upstream_port}") for host in ("127.0.0.1", "localhost")]
    goals: dict[ServiceClass, Goal] = {"interactive": Goal(ttft_s=1.0, tpot_s=0.05), "batch": Goal(deadline_s=86400.0)}
    routing, registry = RoutingConfig(), CollectorRegistry()
    parts = PolicyParts(routing, ReplicaModels({"bench": PoolFacts(price_per_hour=0.2, max_concurrency=4096)}))
    room, pools = Room(parts.models, routing, goals["interactive"]), Pools([pool], upstream_fetch(UpstreamClient()))
    admission = Admission(
        AdmissionConfig(),
        lambda c: bool(room.usable(c, pools.replicas(c.model, c.service_class), time.monotonic())),
    )
    pools.on_up(lambda replica: admission.notify())
    gateway = Gateway(
        Parts(
            pools=pools, policy=make_policy(parts), room=room, admission=admission, keys=keys,
            limits=StoredLimits(keys.rules, ledger.spending), ledger=ledger,
            scores=PredictionScores(parts.models, parts.index, registry), registry=registry,
            parser_config=ParserConfig(goals=goals),
        )
    )  # fmt: skip
    await pools.start()
    await serve(make_app(gateway), "127.0.0.1", port)
    await asyncio.Event().wait()


def run_role(role: str, port: int, upstream_port: int) -> None:
    if role == "upstream":
        uvloop.run(serve_upstream(port))
    elif role == "tandem":
        uvloop.run(serve_tandem(port, upstream_port))
    else:
        uvloop.run(serve_bare(port, upstream_port))


# The measuring side.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r:.200} ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on {port}")


def commands(name: str, port: int, upstream_port: int, peers: Path | None) -> list[str] | None:
    """How to start a gateway; None: not installed."""
    if name in ROLES:
        return [sys.executable, "-m", "benchmarks.gateway", "--role", name, "--port", f"{port}:{upstream_port}"]
    program = None if peers is None else peers / "bin" / name
    if program is None or not program.exists():
        return None
    upstream = f"http://127.0.0.1:{upstream_port}"
    if name == "vllm-router":
        return [str(program), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream, "--policy",
                "round_robin"]  # fmt: skip
    config = Path(tempfile.mkdtemp()) / "litellm.yaml"
    model = {"model": "openai/bench", "api_base": f"{upstream}/v1", "api_key": "x"}
    config.write_text(json.dumps({"model_list": [{"model_name": "bench", "litellm_params": model}]}))
    return [str(program), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]


@contextmanager
def running(command: list[str], port: int, core: int) -> Iterator[int]:
    environment = os.environ | {"LITELLM_MASTER_KEY": KEY, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if "-m" not in command else None,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    try:
        wait_for(port, process)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def best(runs: int, run: object, key: object) -> Figures:
    results = [await run() for _ in range(runs)]  # type: ignore[operator]
    return min(results, key=key)  # type: ignore[call-overload,no-any-return]


async def measure(name: str, port: int, pid: int | None, options: argparse.Namespace) -> dict[str, float]:
    """All figures of one gateway, or of the bare upstream where `pid` is None."""
    seconds, key = options.seconds, None if name == "none" else KEY
    short = make_request(chat("Tell me about proxies. " * 6, max_tokens=64), key)
    long = make_request(chat("word and " * 44_444, max_tokens=64), key)
    await closed_loop(port, short, 4, 1.0)  # warm
    row: dict[str, float] = {}

    one = await best(3, lambda: closed_loop(port, short, 1, seconds / 2), lambda f: f.quantile(0.5))
    row["p50_ms"] = 1e3 * one.quantile(0.5)
    before = 0.0 if pid is None else cpu_s(pid)
    results = [await closed_loop(port, short, 32, seconds) for _ in range(3)]
    if pid is not None:
        row["cpu_us"] = 1e6 * (cpu_s(pid) - before) / sum(len(f.latencies) for f in results)
    many = max(results, key=lambda f: len(f.latencies) / f.wall_s)
    row["rps"] = len(many.latencies) / many.wall_s
    row["errors"] = sum(f.num_errors for f in results)
    if row["rps"] > 600:
        steady = await best(3, lambda: open_loop(port, short, 500, seconds), lambda f: f.quantile(0.99))
        row["p99_500_ms"] = 1e3 * steady.quantile(0.99)
    lone = await best(3, lambda: closed_loop(port, long, 1, seconds / 2), lambda f: f.quantile(0.5))
    row["long_ms"] = 1e3 * lone.quantile(0.5)
    if options.streams and (pid is None or row["rps"] > 600):  # a thousand streams would never end
        num_chunks = int(CHUNKS_PER_S * (seconds + 5.0))
        request = make_request(chat("stream", max_tokens=num_chunks, stream=True), key)
        flow = await streams(port, request, options.streams, seconds, lambda: 0.0 if pid is None else cpu_s(pid))
        if pid is not None:
            row["cpu_chunk_us"] = 1e6 * flow.cpu_s / max(1, len(flow.latencies))
        row["chunk_p50_ms"], row["chunk_p99_ms"] = 1e3 * flow.quantile(0.5), 1e3 * flow.quantile(0.99)
        row["chunks_per_s"] = len(flow.latencies) / flow.wall_s
        row["stream_errors"] = flow.num_errors
    if pid is not None and options.memory:
        row["rss_before"] = rss_mib(pid)
        left = options.memory
        while left > 0:
            left -= len((await closed_loop(port, short, 32, 5.0)).latencies)
        row["rss_after"] = rss_mib(pid)
    return row


def report(rows: dict[str, dict[str, float]]) -> None:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    print("gateway".ljust(14), *(name.rjust(13) for name in names))
    for gateway, row in rows.items():
        print(gateway.ljust(14), *(f"{row[name]:13.3f}" if name in row else " " * 13 for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--memory", type=int, default=0, help="requests between two looks at the memory")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--only", default="none,tandem,bare,vllm-router,litellm")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--port", default="0:0", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        own, upstream = map(int, options.port.split(":"))
        run_role(options.role, own, upstream)
        return
    cores = sorted(os.sched_getaffinity(0))
    gateway_core, other_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {other_core})
    rows: dict[str, dict[str, float]] = {}
    upstream_port = free_port()
    with running(commands("upstream", upstream_port, 0, None) or [], upstream_port, other_core):
        for name in options.only.split(","):
            if name == "none":
                rows[name] = uvloop.run(measure(name, upstream_port, None, options))
                continue
            port = free_port()
            command = commands(name, port, upstream_port, options.peers)
            if command is None:
                print(f"{name}: not installed")
                continue
            with running(command, port, gateway_core) as pid:
                rows[name] = uvloop.run(measure(name, port, pid, options))
            report({name: rows[name]})
    print()
    report(rows)


if __name__ == "__main__":
    main()
