"""Stand-ins for the engine core and the text layer.

The tokenizer's tokens are the 256 bytes, so a character beyond ASCII is several tokens, and every expected count can be
read off a string. What the engine answers is a script: an async generator over `Output`s.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import NamedTuple

from tandem.core.errors import EngineFailed, InvalidRequest, Unavailable
from tandem.core.sampling_params import SamplingParams
from tandem.core.types import FinishReason
from tandem.engine.messages import EngineStats, NewRequest, Output, Ready, RequestUsage, TokenLogprobs
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.state import KVEventBatch

EOS = 256
BOS = 257
SPECIAL = {EOS: "<eos>", BOS: "<bos>"}
VOCAB_SIZE = 258
PATIENCE_S = 5.0
"""How long a test waits for what must happen at once; reached only when it doesn't."""

Script = Callable[["FakeEngine", NewRequest], AsyncIterator[Output]]


class FakeDelta(NamedTuple):
    text: str
    stop: str | None
    num_tokens_used: int


class FakeTextStream:
    """Characters when complete; text that may begin a stop string is held back."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._sampling = sampling
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> FakeDelta:
        if not self._sampling.stop:
            return FakeDelta(self._decoder.decode(bytes([t for t in token_ids if t < 256])), None, len(token_ids))
        shown = ""
        for num_used, token in enumerate(token_ids, start=1):
            self._held += self._decoder.decode(bytes([token]) if token < 256 else b"")
            for stop in self._sampling.stop:
                if (at := self._held.find(stop)) >= 0:
                    cut = at + len(stop) if self._sampling.include_stop_str_in_output else at
                    return FakeDelta(shown + self._held[:cut], stop, num_used)
            shown += self._release()
        return FakeDelta(shown, None, len(token_ids))

    def finish(self) -> str:
        return self._held + self._decoder.decode(b"", True)

    def _release(self) -> str:
        held = max((self._overlap(stop) for stop in self._sampling.stop), default=0)
        split = len(self._held) - held
        released, self._held = self._held[:split], self._held[split:]
        return released

    def _overlap(self, stop: str) -> int:
        return next((n for n in range(len(stop) - 1, 0, -1) if self._held.endswith(stop[:n])), 0)


class FakeText:
    """Bytes as tokens. `adds_bos` is what the tokenizer does to a raw text."""

    longest_token_bytes = 1

    def __init__(self, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        self.num_encoded = 0

    def render_chat(self, request: ChatCompletionRequest) -> list[int]:
        self.num_encoded += 1
        if any(message.text() == "raise" for message in request.messages):
            raise InvalidRequest("The template refuses this.", param="messages")
        turns = "".join(f"{message.role}:{message.text() or ''}\n" for message in request.messages)
        return list(turns.encode())

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        self.num_encoded += 1
        if parse_special and text.endswith("<eos>"):
            return [
                *self.encode(text.removesuffix("<eos>"), add_special_tokens=add_special_tokens, parse_special=False),
                EOS,
            ]
        return ([BOS] if self.adds_bos and add_special_tokens else []) + list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        named = b"".join(
            self.token_bytes(token) or (b"" if skip_special_tokens else SPECIAL[token].encode()) for token in token_ids
        )
        return named.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token_name(self, token_id: int) -> str:
        return SPECIAL[token_id]

    def open_stream(self, sampling: SamplingParams) -> FakeTextStream:
        return FakeTextStream(sampling)


class FakeEngine:
    """An `EngineClient` that plays a script for each request, and remembers what it was told."""

    def __init__(self, script: Script, *, max_model_len: int = 1000, max_num_seqs: int = 8) -> None:
        self.script = script
        self.info: Ready | None = make_ready(max_model_len, max_num_seqs)
        self.failure: str | None = None
        self.stats = EngineStats(time_s=0.0)
        self.heartbeat_s = 0.0
        self.requests: list[NewRequest] = []
        self.aborted: list[str] = []
        self.drained_s: float | None = None
        self.listener: Callable[[EngineStats], None] | None = None
        self.cache_listener: Callable[[KVEventBatch], None] | None = None
        self.num_watched = 0
        self._dead = asyncio.Event()
        self._changed = asyncio.Condition()

    @property
    def is_alive(self) -> bool:
        return not self._dead.is_set()

    def heartbeat_age_s(self) -> float:
        return self.heartbeat_s

    def watch_steps(self, listener: Callable[[EngineStats], None]) -> None:
        self.listener = listener

    def watch_cache(self, listener: Callable[[KVEventBatch], None] | None) -> None:
        self.cache_listener = listener
        self.num_watched += 1

    async def generate(self, request: NewRequest) -> AsyncGenerator[Output, None]:
        if self.drained_s is not None or self.info is None:
            raise Unavailable("not now")
        self.requests.append(request)
        await self._notify()
        num_finished = 0
        try:
            async for output in self.script(self, request):
                num_finished += output.finish_reason is not None
                yield output
        finally:
            if num_finished < request.sampling.n and self.is_alive:
                self.aborted.append(request.request_id)
                await self._notify()

    async def drain(self, timeout_s: float) -> None:
        self.drained_s = timeout_s
        self._dead.set()

    def die(self, why: str) -> None:
        """Every request that holds fails from here on."""
        self.failure = why
        self._dead.set()

    async def hold(self) -> None:
        """For scripts: wait for a token that never comes."""
        await self._dead.wait()
        raise EngineFailed(f"The engine died: {self.failure}")

    async def wait_until(self, condition: Callable[[FakeEngine], bool]) -> None:
        """Until something was asked or aborted such that the condition holds."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def make_ready(max_model_len: int = 1000, max_num_seqs: int = 8) -> Ready:
    return Ready(
        pid=1, model="fake", family="llama", runner="fake", device="cpu", dtype="float32", kv_dtype="float32",
        block_size=16, num_blocks=100, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
        vocab_size=VOCAB_SIZE, eos_token_ids=[EOS], weights_bytes=1, kv_bytes=1, summary=[],
    )  # fmt: skip


def usage_of(request: NewRequest, num_output_tokens: int, num_cached_tokens: int = 2) -> RequestUsage:
    return RequestUsage(
        num_prompt_tokens=len(request.prompt_token_ids), num_cached_tokens=num_cached_tokens,
        num_output_tokens=num_output_tokens, queue_s=0.1, prefill_s=0.2, decode_s=0.3, engine_s=0.4, kv_block_s=0.5,
        num_preemptions=0, num_wasted_tokens=0,
    )  # fmt: skip


def say(*answers: bytes, group: int = 1) -> Script:
    """Answer k says `answers[k]` (the last for all further ones), `group` tokens an output, then end-of-sequence.

    Follows `max_tokens`, stop strings, stop tokens and logprobs as the real core does.
    """

    async def script(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        spoken = [plan_answer(answers[min(k, len(answers) - 1)], request) for k in range(request.sampling.n)]
        for start in range(0, max(1, max(len(tokens) for tokens, _, _ in spoken)), group):
            for index, (tokens, reason, stop) in enumerate(spoken):
                if start < max(1, len(tokens)):
                    ended = start + group >= len(tokens)
                    yield make_output(
                        request, index, tokens[start : start + group], is_first=start == 0,
                        finish_reason=reason if ended else None, stop_reason=stop if ended else None,
                        num_output_tokens=len(tokens),
                    )  # fmt: skip

    return script


def failing(error: Exception) -> Script:
    """Every request fails before its first token."""

    async def script(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        if error:
            raise error
        yield Output(request.request_id, 0, [])

    return script


def plan_answer(answer: bytes, request: NewRequest) -> tuple[list[int], FinishReason, str | int | None]:
    """Which tokens come, and why they end."""
    sampling = request.sampling
    assert sampling.max_tokens is not None, "the front fills it in"
    tokens: list[int] = []
    for token in [*answer, EOS]:
        if len(tokens) == sampling.max_tokens:
            break
        tokens.append(token)
        if token == EOS:
            return tokens, "stop", None
        if token in sampling.stop_token_ids:
            return tokens, "stop", token
        for stop in sampling.stop:
            if stop.encode() in bytes(tokens):
                return tokens, "stop", stop
    return tokens, "length", None


def make_output(
    request: NewRequest,
    index: int,
    tokens: list[int],
    *,
    is_first: bool = False,
    finish_reason: FinishReason | None = None,
    stop_reason: str | int | None = None,
    num_output_tokens: int = 0,
) -> Output:
    sampling, prompt = request.sampling, request.prompt_token_ids
    output = Output(request.request_id, index, tokens, finish_reason=finish_reason, stop_reason=stop_reason)
    if sampling.logprobs is not None:
        output.logprobs = [make_logprobs(token, sampling.logprobs) for token in tokens]
    if is_first and index == 0 and sampling.prompt_logprobs is not None:
        output.prompt_logprobs = [None, *(make_logprobs(token, sampling.prompt_logprobs) for token in prompt[1:])]
    if finish_reason is not None:
        output.usage = usage_of(request, num_output_tokens)
    return output


def make_logprobs(token: int, num_top: int) -> TokenLogprobs:
    """The token itself is the likeliest; the alternatives are the bytes after it, and the last is impossible."""
    alternatives = [((token + k) % 256, -0.5 - k) for k in range(num_top)]
    if num_top > 1:
        alternatives[-1] = (alternatives[-1][0], float("-inf"))
    return TokenLogprobs(token, -0.5, 1, alternatives)
