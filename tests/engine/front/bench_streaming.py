"""Front CPU time by streamed chunk: `python -m tests.engine.front.bench_streaming`. Not a test; it asserts nothing.

The server runs in a process of its own, with an engine that sends one token to each of the streams every step, through
the same kind of queue as the real client. What is reported is that process's CPU time, the engine's stand-in included,
divided by chunks.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator

import uvloop

from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.engine.front.app import create_app
from tandem.engine.front.serving import serve
from tandem.engine.messages import NewRequest, Output
from tests.engine.front.fakes import FakeEngine, FakeText, say, usage_of

NUM_STREAMS = 64
NUM_TOKENS = 300
STEP_S = 0.02


class SteppingEngine(FakeEngine):
    """A token for everybody at every step."""

    def __init__(self) -> None:
        super().__init__(say(b""), max_num_seqs=NUM_STREAMS)
        self._queues: dict[str, asyncio.Queue[Output]] = {}
        self.cpu_s = 0.0

    async def generate(self, request: NewRequest) -> AsyncGenerator[Output, None]:
        queue: asyncio.Queue[Output] = asyncio.Queue()
        self._queues[request.request_id] = queue
        if len(self._queues) == NUM_STREAMS:
            self._stepping = asyncio.create_task(self._step())
        while (output := await queue.get()).finish_reason is None:
            yield output
        output.usage = usage_of(request, NUM_TOKENS)
        yield output

    async def _step(self) -> None:
        started_s = time.process_time()
        for number in range(NUM_TOKENS):
            last = number == NUM_TOKENS - 1
            for request_id, queue in self._queues.items():
                queue.put_nowait(Output(request_id, 0, [120], finish_reason="length" if last else None))
            await asyncio.sleep(STEP_S)
        cpu_s = time.process_time() - started_s
        print(json.dumps({"us_per_chunk": 1e6 * cpu_s / (NUM_TOKENS * NUM_STREAMS)}), flush=True)


async def serve_for_ever() -> None:
    config = ServerConfig(port=0)
    app = create_app(SteppingEngine(), FakeText(), config, EngineConfig(served_model_name="m"))
    serving = await serve(app, config)
    print(serving.address.rsplit(":", 1)[1], flush=True)
    await asyncio.Event().wait()


async def read_stream(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    num_chunks = 0
    while data := await reader.read(1 << 16):
        num_chunks += data.count(b"data: ")
    writer.close()
    return num_chunks


async def read_streams(port: int) -> int:
    return sum(await asyncio.gather(*(read_stream(port) for _ in range(NUM_STREAMS))))


def measure() -> None:
    command = [sys.executable, "-m", "tests.engine.front.bench_streaming", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        num_chunks = uvloop.run(read_streams(int(server.stdout.readline())))
        print(f"{num_chunks} chunks over {NUM_STREAMS} streams:", server.stdout.readline().strip())
        server.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        uvloop.run(serve_for_ever())
    else:
        measure()
