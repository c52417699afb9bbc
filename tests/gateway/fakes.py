"""A scriptable engine on a real port, and small stand-ins for the store.

A script is a coroutine over one `Call`: it decides byte by byte what the engine says, and when it is silent or dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tandem.config.gateway_admission import AdmissionConfig
from tandem.config.gateway_http import GatewayHttpConfig
from tandem.config.gateway_replicas import CircuitConfig
from tandem.config.gateway_routing import RoutingConfig
from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.errors import TandemError, Unauthorized
from tandem.gateway.admission.admission import Admission
from tandem.gateway.app import make_app
from tandem.gateway.context import Caller, Goal
from tandem.gateway.gateway import Gateway, Parts
from tandem.gateway.parsing import ParserConfig
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.pools import Pools
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.coserving import Room
from tandem.gateway.routing.facts import PoolFacts
from tandem.gateway.routing.policies import PolicyParts, make_policy
from tandem.gateway.routing.replica_models import ReplicaModels
from tandem.gateway.serving import Serving, serve
from tandem.protocol.ledger import LedgerRow

PATIENCE_S = 5.0
"""How long a test waits for what must happen at once; reached only when it doesn't."""
USAGE = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}


@dataclass
class Call:
    """One request at the fake engine."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The gateway has closed the connection."""

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def head(self, status: int = 200, content_type: str = "text/event-stream", **headers: str) -> None:
        """Of a chunked answer."""
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", "Transfer-Encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, data: dict[str, Any] | str) -> None:
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        self.chunk(b"data: " + text.encode() + b"\n\n")

    def delta(self, content: str | None = None, finish: str | None = None, model: str = "m", **delta: Any) -> None:
        piece = delta if content is None else {"content": content, **delta}
        choice = {"index": 0, "delta": piece, "finish_reason": finish}
        self.event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]})

    def usage(self, usage: dict[str, Any] = USAGE, model: str = "m") -> None:
        self.event({"id": "c", "object": "chat.completion.chunk", "model": model, "choices": [], "usage": usage})

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def answer(self, body: dict[str, Any] | bytes, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join([*lines, "", ""]).encode() + data)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """RST, not FIN."""
        self.writer.transport.abort()

    async def silence(self) -> None:
        """Says nothing more, until the gateway closes."""
        await self.gone.wait()


Script = Callable[[Call], Awaitable[None]]


def completion(content: str = "hello", usage: dict[str, Any] | None = USAGE, model: str = "m") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    return body if usage is None else body | {"usage": usage}


async def well(call: Call) -> None:
    """A healthy engine: three tokens, usage if asked for."""
    request = call.json
    if not request.get("stream"):
        call.answer(completion())
        return
    call.head()
    call.delta("", role="assistant")
    for piece in ("one", " two", " three"):
        call.delta(piece)
    call.delta(finish="stop")
    if request.get("stream_options", {}).get("include_usage"):
        call.usage()
    call.event("[DONE]")
    call.end()


class FakeEngine:
    """Listens on a free port of loopback. `script` may be replaced at any time."""

    def __init__(self, script: Script = well) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.num_running = 0
        self.arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a process that is killed: the port is shut, and every connection with it."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def idle(self) -> None:
        """Until no request runs here, which must be soon."""
        await asyncio.wait_for(self._idle.wait(), PATIENCE_S)

    async def has_arrived(self) -> None:
        await asyncio.wait_for(self.arrived.wait(), PATIENCE_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (call := await _read_call(reader, writer)) is not None:
                with contextlib.suppress(asyncio.CancelledError):  # the test is over
                    await self._run(call, reader)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _run(self, call: Call, reader: asyncio.StreamReader) -> None:
        self.calls.append(call)
        self.num_running += 1
        self._idle.clear()
        self.arrived.set()
        watching = asyncio.ensure_future(_watch(call, reader))
        running = asyncio.ensure_future(self.script(call))
        try:
            await asyncio.wait({watching, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            watching.cancel()
            running.cancel()
            await asyncio.gather(watching, running, return_exceptions=True)
            self.num_running -= 1
            if self.num_running == 0:
                self._idle.set()


async def _watch(call: Call, reader: asyncio.StreamReader) -> None:
    await until(lambda: reader.at_eof() or reader.exception() is not None, math.inf)
    call.gone.set()


async def until(is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """For what nothing tells of; it must come soon."""
    deadline_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come"
        await asyncio.sleep(0.005)


async def _read_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *lines = head.decode().strip().split("\r\n")
    method, path, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(method, path, headers, body, writer)


class FakeKeys:
    """Anonymous, unless there are keys: token → caller."""

    def __init__(self, keys: dict[str, Caller] | None = None) -> None:
        self.keys = keys

    def caller(self, token: str | None) -> Caller:
        if self.keys is None:
            return Caller()
        try:
            return self.keys[token or ""]
        except KeyError:
            raise Unauthorized("The API key is not known.") from None


@dataclass
class FakeLimits:
    reserved: int = 0
    used: int = 0
    refusal: TandemError | None = None

    def take(self, caller: Caller, prompt_tokens: int, output_tokens: int, now_s: float) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.reserved += prompt_tokens + output_tokens

    def settle(self, caller: Caller, reserved_tokens: int, used_tokens: int, cost_micros: int) -> None:
        self.reserved -= reserved_tokens
        self.used += used_tokens


class FakeLedger:
    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []
        self._written = asyncio.Event()

    def record(self, row: LedgerRow) -> None:
        self.rows.append(row)
        self._written.set()

    async def written(self, num_rows: int) -> list[LedgerRow]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.rows) < num_rows:
                self._written.clear()
                await self._written.wait()
        return self.rows


async def _no_fetch(*args: Any, **kwargs: Any) -> Any:
    raise ConnectionError("health is set by hand in these tests")


@dataclass
class Served:
    """A gateway on a port, with its parts at hand."""

    gateway: Gateway
    serving: Serving
    pools: Pools
    admission: Admission
    limits: FakeLimits
    ledger: FakeLedger
    replicas: list[Replica]

    @property
    def url(self) -> str:
        return self.serving.address


@contextlib.asynccontextmanager
async def serving(
    *engines: FakeEngine,
    upstream: UpstreamConfig | None = None,
    http: GatewayHttpConfig | None = None,
    admission: AdmissionConfig | None = None,
    keys: dict[str, Caller] | None = None,
    limits: FakeLimits | None = None,
    pool: dict[str, Any] | None = None,
    parser: ParserConfig | None = None,
    routes: list[web.RouteDef] | None = None,
    admin_routes: list[web.RouteDef] | None = None,
) -> AsyncIterator[Served]:
    """The real gateway with round robin over fake engines, in this event loop. All replicas are up."""
    settings: dict[str, Any] = {"name": "p", "model": "m", "engine": "openai", **(pool or {})}
    one = Pool(**settings)
    one.replicas.extend(one.make_replica(engine.url) for engine in engines)
    pools = Pools([one], _no_fetch, circuit=CircuitConfig(failures_to_open=1000))
    for replica in one.replicas:
        replica.state = "up"
        replica.up_since_s = -1000.0
    routing = RoutingConfig(policy="round-robin")
    facts = PoolFacts(max_concurrency=one.max_concurrency)
    parts = PolicyParts(routing, ReplicaModels({one.name: facts}))
    room = Room(parts.models, routing, Goal())
    waiting = Admission(
        admission or AdmissionConfig(),
        lambda context: bool(
            room.usable(context, pools.replicas(context.model, context.service_class), gateway.clock.now())
        ),
    )
    ledger, limits = FakeLedger(), limits or FakeLimits()
    gateway = Gateway(
        Parts(
            pools=pools, policy=make_policy(parts), room=room, admission=waiting, keys=FakeKeys(keys), limits=limits,
            ledger=ledger, upstream_config=upstream or UpstreamConfig(), http_config=http or GatewayHttpConfig(),
            parser_config=parser or ParserConfig(),
        )
    )  # fmt: skip
    pools.on_up(lambda replica: waiting.notify())
    listening = await serve(make_app(gateway, routes or (), admin_routes or ()), "127.0.0.1", 0)
    try:
        yield Served(gateway, listening, pools, waiting, limits, ledger, list(one.replicas))
    finally:
        await listening.close(0.0)


@contextlib.asynccontextmanager
async def engines(*scripts: Script) -> AsyncIterator[list[FakeEngine]]:
    running = [FakeEngine(script) for script in scripts]
    for engine in running:
        await engine.start()
    try:
        yield running
    finally:
        for engine in running:
            await engine.stop()
