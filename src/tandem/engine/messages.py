"""What front and core say to each other, as msgpack frames over a socket pair. Neither sees the other's objects.

front → core: `NewRequest`, `Abort`, `Drain`, `WatchCache`.  core → front: `Ready` once, then a `StepReport` after every
step and at least twice a second when idle (the heartbeat), `CacheChanged` while somebody watches, or `Failed` as its
last word.
"""

from __future__ import annotations

import msgspec

from tandem.core.sampling_params import SamplingParams
from tandem.core.types import FinishReason, ServiceClass
from tandem.protocol.state import KVEventBatch


class NewRequest(msgspec.Struct, tag="new", kw_only=True):
    """One prompt to continue, `sampling.n` times. Checked already: the core trusts it."""

    request_id: str
    """Unique in this engine; made by the front, never the client's own."""
    prompt_token_ids: list[int]
    sampling: SamplingParams
    """With `seed` and `max_tokens` filled in."""
    priority: int = 0
    """Lower is sooner."""
    service_class: ServiceClass = "interactive"
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    arrival_s: float
    """When the front received it, by the shared monotonic clock."""


class Abort(msgspec.Struct, tag="abort"):
    """Stop these at once and free what they hold. Unknown ids are ignored: they have just finished."""

    request_ids: list[str]


class Drain(msgspec.Struct, tag="drain"):
    """Exit when nothing runs or waits any more."""


class WatchCache(msgspec.Struct, tag="watch-cache"):
    """Report the prefix cache's changes from now on, beginning with all that is there; or no longer."""

    is_on: bool


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Natural-log probabilities at one position, before temperature and penalties. Never NaN; -inf is left out."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: list[tuple[int, float]]
    """(token id, logprob), falling; as many as were asked for."""


class RequestUsage(msgspec.Struct, array_like=True):
    """What an answer cost, with its last output. Times in seconds; see `protocol.usage` for their meaning."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    engine_s: float
    kv_block_s: float
    num_preemptions: int
    num_wasted_tokens: int
    """Generated past the stop condition. Zero unless the engine has a bug; kept because it is money."""


class Output(msgspec.Struct, array_like=True):
    """New tokens of one answer."""

    request_id: str
    index: int
    """Which of the n answers, from 0."""
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    """One for each of `token_ids`, if asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """With the first output only; the first position has none."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for end-of-sequence and for length."""
    usage: RequestUsage | None = None
    """With the last output of each answer."""
    error: str | None = None
    """Why this request failed, with finish_reason "error"."""


class EngineStats(msgspec.Struct, kw_only=True):
    """The core's state after a step: gauges as they are, counters since start."""

    time_s: float
    """Monotonic: the heartbeat."""
    num_running: dict[str, int] = {}
    """service class → requests with a seat."""
    num_waiting: dict[str, int] = {}
    num_queued_prompt_tokens: int = 0
    """Prompt tokens not computed yet, of requests waiting and running; cached ones not counted where known."""
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Holding nothing."""
    num_cached_blocks: int = 0
    """Held by nobody, still of use to a prefix."""
    num_held_blocks: int = 0
    num_allocated_slots: int = 0
    num_empty_slots: int = 0
    """Of the allocated ones: no token's KV in them yet."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache: each request once."""
    prefix_hits: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_steps: int = 0
    num_wasted_tokens: int = 0
    last_step_s: float = 0.0
    last_step_tokens: int = 0
    last_step_seqs: int = 0
    busy_s: float = 0.0
    """Seconds spent in steps since start."""
    kv_events_sequence: int = 0


class StepReport(msgspec.Struct, tag="step"):
    """All outputs of one step in one frame."""

    outputs: list[Output]
    stats: EngineStats


class CacheChanged(msgspec.Struct, tag="cache"):
    """What one step changed in the prefix cache."""

    batch: KVEventBatch


class Ready(msgspec.Struct, tag="ready", kw_only=True):
    """The model is loaded. What the front must know about it, and what was printed at start."""

    pid: int
    model: str
    family: str
    runner: str
    device: str
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: list[int]
    weights_bytes: int
    kv_bytes: int
    summary: list[str]
    """Lines for people: weights, KV, longest context, requests at once, kernels in use."""


class Failed(msgspec.Struct, tag="failed"):
    """The core can't go on; it exits after sending this."""

    message: str
    kind: str
    """Name of the error class in `core.errors`."""


ToCore = NewRequest | Abort | Drain | WatchCache
FromCore = Ready | StepReport | CacheChanged | Failed

to_core_encoder = msgspec.msgpack.Encoder()
to_core_decoder = msgspec.msgpack.Decoder(ToCore)
from_core_encoder = msgspec.msgpack.Encoder()
from_core_decoder = msgspec.msgpack.Decoder(FromCore)
