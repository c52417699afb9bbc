"""/v1/batches with the official client: validation, results, counts, cancelling, expiry, retries, takeover."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import openai
import pytest

from tandem.config.gateway_store import BatchesConfig, StoreConfig
from tandem.gateway.batches.lines import LineAnswer, LineRequest
from tandem.gateway.batches.runner import BatchRunner
from tandem.gateway.store.database import Database
from tandem.gateway.store.key_rows import KeyRules
from tests.engine.front.openapi import PATH, OpenApi
from tests.gateway.lines import Engine, answer, chat_file, chat_line, jsonl, refusal
from tests.gateway.rows import until
from tests.gateway.served import Served, serving, token_of


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def served(address: str, store_config: StoreConfig, engine: Engine) -> AsyncIterator[Served]:
    async with serving(address, store_config, engine) as running:
        yield running


class Gate:
    """Lets lines through one by one."""

    def __init__(self) -> None:
        self.passes = asyncio.Semaphore(0)
        self.entered: list[str] = []

    async def script(self, line: LineRequest) -> LineAnswer:
        self.entered.append(line.custom_id)
        await self.passes.acquire()
        return answer(line)


async def test_a_batch_from_upload_to_results(served: Served, engine: Engine) -> None:
    batch = await served.batch(chat_file(40), metadata={"job": "nightly"})
    assert (batch.status, batch.output_file_id, batch.metadata) == ("validating", None, {"job": "nightly"})
    done = await served.finished(batch)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (40, 40, 0)
    assert (done.error_file_id, done.errors) == (None, None)
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert times == sorted(time for time in times if time is not None)
    assert done.expires_at == done.created_at + 86_400
    lines = await served.lines(done.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"q{number}" for number in range(1, 41)]
    for line in lines:
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["choices"][0]["message"]["content"] == line["custom_id"]
    assert len({line["id"] for line in lines}) == 40
    assert Counter(engine.asked) == {f"q{number}": 1 for number in range(1, 41)}
    assert engine.headers["X-Tandem-Class"] == "batch"
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (280, 120, 400)
    assert done.model == "m"
    output = await served.openai.files.retrieve(done.output_file_id or "")
    assert output.purpose == "batch_output"
    assert output.filename == f"{done.id}_output.jsonl"


async def test_a_batch_in_which_every_line_fails_completes(served: Served, engine: Engine) -> None:
    """Case ba-01."""

    async def script(line: LineRequest) -> LineAnswer:
        return answer(line) if line.custom_id == "good" else refusal(400, "invalid_value")

    engine.script = script
    done = await served.finished(await served.batch(chat_file(2)))
    for _ in range(3):
        assert await served.openai.batches.retrieve(done.id) == done
    assert (done.status, done.output_file_id) == ("completed", None)
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (2, 0, 2)
    lines = await served.lines(done.error_file_id)
    assert [line["custom_id"] for line in lines] == ["q1", "q2"]
    assert [line["response"]["status_code"] for line in lines] == [400, 400]
    assert lines[0]["response"]["body"]["error"]["code"] == "invalid_value"
    async with served.http.get(f"/v1/batches/{done.id}") as response:
        assert "output_file_id" in await response.json()
    mixed = await served.finished(await served.batch(jsonl(chat_line("good"), chat_line("bad"))))
    assert [line["custom_id"] for line in await served.lines(mixed.output_file_id)] == ["good"]
    assert [line["custom_id"] for line in await served.lines(mixed.error_file_id)] == ["bad"]


async def test_a_damaged_file_fails_the_batch_and_runs_nothing(served: Served, engine: Engine) -> None:
    """Case ba-02, through the API."""
    lines = chat_file(5).splitlines(keepends=True)
    lines[2] = b"{bad json\n"
    failed = await served.finished(await served.batch(b"".join(lines)))
    assert failed.status == "failed"
    assert failed.failed_at is not None
    assert failed.errors is not None
    assert failed.errors.data is not None
    (error,) = failed.errors.data
    assert (error.code, error.line) == ("invalid_json_line", 3)
    assert error.message is not None
    assert "JSON" in error.message
    assert (failed.output_file_id, failed.error_file_id) == (None, None)
    assert engine.asked == []


async def test_cancelling_keeps_what_is_done(address: str, store_config: StoreConfig) -> None:
    """Case ba-04: cancel after 4 of 8; again; and one that is over."""
    gate = Gate()
    engine = Engine(gate.script)
    config = BatchesConfig(max_concurrency=1, poll_s=0.05)
    async with serving(address, store_config, engine, config) as served:
        batch = await served.batch(chat_file(8))
        for _ in range(4):
            gate.passes.release()
        await until(lambda: len(gate.entered) == 5)
        asked = await served.openai.batches.cancel(batch.id)
        assert asked.status in ("cancelling", "cancelled")
        assert asked.cancelling_at is not None
        done = await served.finished(batch)
        assert (done.status, done.cancelled_at is not None) == ("cancelled", True)
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (8, 4, 0)
        assert [line["custom_id"] for line in await served.lines(done.output_file_id)] == ["q1", "q2", "q3", "q4"]
        undone = await served.lines(done.error_file_id)
        assert [line["custom_id"] for line in undone] == ["q5", "q6", "q7", "q8"]
        assert {line["error"]["code"] for line in undone} == {"batch_cancelled"}
        assert gate.entered == ["q1", "q2", "q3", "q4", "q5"]
        assert engine.in_flight == 0
        assert await served.openai.batches.cancel(batch.id) == done
        engine.script = None
        completed = await served.finished(await served.batch(chat_file(1)))
        with pytest.raises(openai.ConflictError, match="completed"):
            await served.openai.batches.cancel(completed.id)
        assert await served.openai.batches.retrieve(completed.id) == completed


async def test_a_window_that_passes_expires_the_batch(served: Served, engine: Engine) -> None:
    """Case ba-04, the window."""
    gate = Gate()
    engine.script = gate.script
    batch = await served.batch(chat_file(4), completion_window="1s")
    gate.passes.release()
    done = await served.finished(batch)
    assert (done.status, done.expired_at is not None) == ("expired", True)
    assert len(await served.lines(done.output_file_id)) == 1
    undone = await served.lines(done.error_file_id)
    assert {line["error"]["code"] for line in undone} == {"batch_expired"}
    assert len(undone) == 3
    assert engine.in_flight == 0


async def test_deleting_the_input_does_not_break_the_run(served: Served, engine: Engine) -> None:
    """Case ba-04, the input file."""
    gate = Gate()
    engine.script = gate.script
    batch = await served.batch(chat_file(6))
    await until(lambda: len(gate.entered) > 0)
    await served.openai.files.delete(batch.input_file_id)
    for _ in range(6):
        gate.passes.release()
    done = await served.finished(batch)
    assert done.status == "completed"
    assert len(await served.lines(done.output_file_id)) == 6


async def test_full_engines_are_tried_again_and_never_fail_a_line(served: Served, engine: Engine) -> None:
    tries: Counter[str] = Counter()

    async def script(line: LineRequest) -> LineAnswer:
        tries[line.custom_id] += 1
        if tries[line.custom_id] <= 4 and line.number % 2:
            return refusal(503 if line.number % 4 == 1 else 429, "queue_full", 0.01)
        return answer(line)

    engine.script = script
    done = await served.finished(await served.batch(chat_file(12)))
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (12, 0)
    assert tries["q1"] == 5


async def test_failures_of_the_server_are_tried_a_few_times(served: Served, engine: Engine) -> None:
    async def script(line: LineRequest) -> LineAnswer:
        if line.custom_id == "q1":
            return refusal(500, "engine_failed", 0.01)
        if line.custom_id == "q2":
            raise RuntimeError("a bug")
        if line.custom_id == "q3":
            return LineAnswer(200, b"", 0.01)
        if line.custom_id == "q4":
            return LineAnswer(200, b'{"a": "\xff"}', 0.01)
        return answer(line)

    engine.script = script
    done = await served.finished(await served.batch(chat_file(5)))
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 4)
    errors = {line["custom_id"]: line for line in await served.lines(done.error_file_id)}
    assert errors["q1"]["response"]["status_code"] == 500
    assert errors["q2"]["response"]["status_code"] == 500
    assert "a bug" not in json.dumps(errors)
    assert errors["q3"]["error"]["code"] == "invalid_response"
    assert errors["q4"]["error"]["code"] == "invalid_response"
    assert Counter(engine.asked) == {"q1": 3, "q2": 3, "q3": 3, "q4": 3, "q5": 1}


async def test_a_key_over_its_own_limit_holds_up_its_own_lines_only(served: Served, engine: Engine) -> None:
    blocked = asyncio.Event()

    async def script(line: LineRequest) -> LineAnswer:
        if line.tenant == "other" and not blocked.is_set():
            return refusal(429, "rate_limit_exceeded", 0.05)
        return answer(line)

    engine.script = script
    other = served.openai.with_options(api_key=await token_of(served, KeyRules(tenant="other")))
    file = await other.files.create(file=chat_file(20), purpose="batch")
    waiting = await other.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    await until(lambda: len(engine.asked) > 0)
    assert (await served.finished(await served.batch(chat_file(20)))).status == "completed"
    assert (await other.batches.retrieve(waiting.id)).status == "in_progress"
    blocked.set()
    async with asyncio.timeout(30):
        while (await other.batches.retrieve(waiting.id)).status != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert served.store.runner is not None
    assert served.store.runner.room.size >= 8  # The engines were never full.


async def test_a_stream_in_a_batch_is_refused_by_line(served: Served, engine: Engine) -> None:
    streamed = chat_line("s", body={"model": "m", "messages": [], "stream": True})
    done = await served.finished(await served.batch(jsonl(streamed, chat_line("q"))))
    (line,) = await served.lines(done.error_file_id)
    assert (line["custom_id"], line["response"]["body"]["error"]["param"]) == ("s", "stream")
    assert engine.asked == ["q"]


async def test_batches_are_listed_in_pages_to_their_tenant(served: Served) -> None:
    ids = [(await served.batch(chat_file(1))).id for _ in range(5)]
    assert [batch.id async for batch in served.openai.batches.list(limit=2)] == ids[::-1]
    page = await served.openai.batches.list(limit=2, after=ids[4])
    assert ([batch.id for batch in page.data], page.has_more) == ([ids[3], ids[2]], True)
    other = served.openai.with_options(api_key=await token_of(served, KeyRules(tenant="other")))
    assert [batch async for batch in other.batches.list()] == []
    for call in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await call(ids[0])
    with pytest.raises(openai.BadRequestError, match="after"):
        await other.batches.list(after=ids[0])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/responses"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0s"}, "completion_window"),
        ({"completion_window": "999d"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": "a\x00b"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "expires_after"),
    ],
)
async def test_what_cannot_be_is_refused_at_once(served: Served, changes: dict[str, object], param: str) -> None:
    fields = {
        "input_file_id": await served.upload(chat_file(1)),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    } | changes
    async with served.http.post("/v1/batches", json=fields) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param


async def test_an_output_file_is_no_input(served: Served) -> None:
    done = await served.finished(await served.batch(chat_file(1)))
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await served.openai.batches.create(
            input_file_id=done.output_file_id or "", endpoint="/v1/chat/completions", completion_window="24h"
        )


async def test_results_last_as_long_as_was_asked(served: Served) -> None:
    keep = {"anchor": "created_at", "seconds": 7200}
    done = await served.finished(await served.batch(chat_file(1), extra_body={"output_expires_after": keep}))
    file = await served.openai.files.retrieve(done.output_file_id or "")
    assert file.expires_at == pytest.approx(file.created_at + 7200, abs=1)


async def test_two_runners_on_one_database_run_each_line_once(
    address: str, served: Served, engine: Engine, store_config: StoreConfig
) -> None:
    second = Database(address, store_config)
    other = BatchRunner(second, served.store.folder, BatchesConfig(poll_s=0.05), engine)
    await other.start()
    batches = [await served.batch(chat_file(10)) for _ in range(3)]
    for batch in batches:
        assert (await served.finished(batch)).status == "completed"
    assert len(engine.asked) == 30
    assert served.store.runner is not None
    assert [served.store.runner.lease.is_held, other.lease.is_held] == [True, False]
    await other.close()
    await second.close()


async def test_another_gateway_takes_over_and_the_old_one_writes_nothing_more(
    address: str, served: Served, engine: Engine, store_config: StoreConfig
) -> None:
    """The first runner hangs with half of the lines done; its late results are not taken."""
    gate = Gate()
    engine.script = gate.script
    batch = await served.batch(chat_file(6))
    for _ in range(3):
        gate.passes.release()
    first = served.store.runner
    assert first is not None
    await until(lambda: len(gate.entered) == 6)

    async def counted() -> int:
        counts = (await served.openai.batches.retrieve(batch.id)).request_counts
        return counts.completed if counts else 0

    async with asyncio.timeout(30):
        while await counted() < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def asleep() -> bool:
        return True

    first.lease.renew = asleep  # type: ignore[method-assign]  # It believes, and renews nothing.
    second = Database(address, store_config)
    other_engine = Engine()
    other = BatchRunner(second, served.store.folder, BatchesConfig(poll_s=0.05), other_engine)
    await other.start()
    done = await served.finished(batch)
    assert sorted(other_engine.asked) == ["q4", "q5", "q6"]
    for _ in range(3):
        gate.passes.release()
    await until(lambda: first.num_open_lines == 0)
    assert await served.openai.batches.retrieve(batch.id) == done
    assert len(await served.lines(done.output_file_id)) == 6
    await other.close()
    await second.close()


async def test_tenants_take_turns(address: str, store_config: StoreConfig) -> None:
    gate = Gate()
    order: list[str] = []

    async def script(line: LineRequest) -> LineAnswer:
        order.append(line.tenant)
        return await gate.script(line)

    async with serving(address, store_config, Engine(script), BatchesConfig(max_active=2, poll_s=0.05)) as served:
        runner = served.store.runner
        assert runner is not None
        many = [await served.batch(chat_file(1)) for _ in range(4)]
        other = served.openai.with_options(api_key=await token_of(served, KeyRules(tenant="other")))
        file = await other.files.create(file=chat_file(1), purpose="batch")
        await other.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )  # fmt: skip
        for _ in range(5):
            gate.passes.release()
        for batch in many:
            await served.finished(batch)
        assert runner.num_active <= 2
        assert "other" in order[:4]


@pytest.mark.skipif(not PATH.exists(), reason="OpenAI's description is not here")
async def test_the_shapes_are_openais(served: Served) -> None:
    schema = OpenApi()
    done = await served.finished(await served.batch(chat_file(2)))
    async with served.http.get(f"/v1/batches/{done.id}") as response:
        body = await response.json()
    # Its description has no null, though its service answers null for what doesn't apply yet.
    schema.check({key: value for key, value in body.items() if value is not None}, "Batch")
    for line in await served.lines(done.output_file_id):
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert set(line["response"]) == {"status_code", "request_id", "body"}
