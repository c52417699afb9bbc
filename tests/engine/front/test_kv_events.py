"""`GET /tandem/kv-events`: as a stream and as answers, from a buffer that is bounded and costs nothing unused."""

from __future__ import annotations

import asyncio
import json

import msgspec

from tandem.config.server import ServerConfig
from tandem.core.clock import ManualClock
from tandem.engine.front.kv_events import KEPT_ON_S, KVEventBuffer
from tandem.protocol.sse import SseParser
from tandem.protocol.state import BlockEvicted, BlockStored, CacheResync, KVEvent, KVEventBatch
from tests.engine.front.fakes import PATIENCE_S, FakeEngine, say
from tests.engine.front.served import Running, running


def resync(sequence: int, *hashes: str) -> CacheResync:
    return CacheResync(sequence=sequence, block_hashes=list(hashes))


def stored(sequence: int, *hashes: str) -> BlockStored:
    return BlockStored(sequence=sequence, block_hashes=list(hashes), parent_hash=None, block_size=16)


def listens(engine: FakeEngine) -> bool:
    return engine.cache_listener is not None


def emit(engine: FakeEngine, *events: KVEvent) -> None:
    assert engine.cache_listener is not None
    engine.cache_listener(KVEventBatch(events=list(events)))


async def watched(engine: FakeEngine, times: int) -> None:
    """Until the engine was asked to report so many times."""
    async with asyncio.timeout(PATIENCE_S):
        while engine.num_watched < times:  # noqa: ASYNC110 - the handler runs in the same loop
            await asyncio.sleep(0)


async def ask(server: Running, after: int) -> list[KVEvent]:
    status, text = await server.get(f"/tandem/kv-events?after={after}")
    assert status == 200, text
    return msgspec.json.decode(text, type=KVEventBatch).events


async def test_answers_begin_with_a_resync_and_go_on_without_one() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        first = asyncio.create_task(ask(server, 0))
        await watched(engine, 1)
        emit(engine, resync(1, "aa"))
        assert await first == [resync(1, "aa")]
        emit(engine, stored(2, "bb"), BlockEvicted(sequence=3, block_hashes=["aa"]))
        assert [event.sequence for event in await ask(server, 1)] == [2, 3]
        assert await ask(server, 3) == []
        assert await ask(server, 0) == [resync(1, "aa"), stored(2, "bb"), BlockEvicted(sequence=3, block_hashes=["aa"])]
        assert engine.num_watched == 1, "one resync serves all"
        status, text = await server.get("/tandem/kv-events?after=x")
        assert (status, json.loads(text)["error"]["param"]) == (400, "after")


async def test_a_stream_follows() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        async with server.http.get("/tandem/kv-events") as response:
            assert response.content_type == "text/event-stream"
            parser, received = SseParser(), list[KVEvent]()
            await watched(engine, 1)
            emit(engine, resync(1, "aa"))
            emit(engine, stored(2, "bb"))
            async with asyncio.timeout(PATIENCE_S):
                while len(received) < 2:
                    for event in parser.feed(await response.content.readany()):
                        if event.data:
                            received += msgspec.json.decode(event.data, type=KVEventBatch).events
            assert received == [resync(1, "aa"), stored(2, "bb")]
            assert server.front.num_open == 0, "a shutdown doesn't wait for listeners"
            assert await ask(server, 1) == [stored(2, "bb")]
        assert engine.num_watched == 1


async def test_the_route_is_closed_without_the_key() -> None:
    """Bug case sec-01."""
    wrong = {"Authorization": "Bearer wrong"}
    async with (
        running(FakeEngine(say(b"a")), config=ServerConfig(port=0, api_key="k")) as server,
        server.http.get("/tandem/kv-events", headers=wrong) as response,
    ):
        assert response.status == 401


async def test_an_engine_that_is_not_ready_says_so() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        engine.info = None
        assert (await server.get("/tandem/kv-events?after=0"))[0] == 503
    assert engine.num_watched == 0


def buffer(max_hashes: int = 10) -> tuple[FakeEngine, KVEventBuffer, ManualClock]:
    engine, clock = FakeEngine(say(b"a")), ManualClock()
    made = KVEventBuffer(engine, clock, max_hashes)
    assert made.read(None) is None
    emit(engine, resync(1, "aa"))
    return engine, made, clock


async def test_the_buffer_is_bounded_and_a_reader_left_behind_gets_a_resync() -> None:
    engine, made, _ = buffer(max_hashes=10)
    for number in range(2, 102):
        emit(engine, stored(number, f"{number:02x}"))
    assert made.read(95) == [stored(n, f"{n:02x}") for n in range(96, 102)]
    assert engine.num_watched == 1
    assert made.read(5) is None, "it has lost events"
    assert engine.num_watched == 2
    assert made.read(101) is None, "until the resync has come, nobody is sure"
    assert engine.num_watched == 2, "it has been asked for already"
    emit(engine, resync(102, "aa", "bb"))
    assert made.read(5) == made.read(101) == [resync(102, "aa", "bb")]


async def test_recording_ends_a_while_after_the_last_question_but_not_while_a_stream_is_open() -> None:
    engine, made, clock = buffer()
    clock.advance(KEPT_ON_S + 1)
    made.num_streams = 1
    emit(engine, stored(2, "bb"))
    assert listens(engine)
    made.num_streams = 0
    emit(engine, stored(3, "cc"))
    assert not listens(engine)
    assert made.read(2) is None, "it begins anew"
    assert listens(engine)


async def test_no_reader_no_cost() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        assert server.front is not None
        await server.openai.completions.create(model="m", prompt="x", max_tokens=1)
        assert engine.num_watched == 0
