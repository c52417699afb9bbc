"""What a load test is told: the traffic, its arrivals, and when to stop. Each field is a flag of `tandem bench`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tandem.core.errors import ConfigError
from tandem.traffic.lengths import parse_lengths

Dataset = Literal["random", "jsonl", "sharegpt", "azure", "mooncake", "sessions", "retrieval"]


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults are those of `tandem bench` without flags: 100 random requests, 8 at a time."""

    num_requests: Annotated[int | None, Meta(description="Requests to send; with --duration, at most so many.")] = None
    duration: Annotated[float | None, Meta(description="Send for so many seconds (each step, in a sweep).")] = None
    rate: Annotated[float | None, Meta(description="Open loop: requests a second, whatever the answers do.")] = None
    concurrency: Annotated[int | None, Meta(description="Closed loop: so many requests at any time.")] = None
    burstiness: Annotated[
        float,
        Meta(gt=0, description="Shape of the gaps between arrivals: 1 Poisson, below 1 bursts, above 1 more even."),
    ] = 1.0
    constant: Annotated[bool, Meta(description="Arrivals at even distances.")] = False
    ramp_to: Annotated[float | None, Meta(description="Let --rate change evenly to this one, over --duration.")] = None
    replay: Annotated[bool, Meta(description="Arrivals as the trace recorded them.")] = False
    speed: Annotated[float, Meta(gt=0, description="Replay so many times as fast.")] = 1.0
    dataset: Annotated[Dataset, Meta(description="What to send.")] = "random"
    dataset_path: Annotated[str | None, Meta(description="File of a dataset or trace.")] = None
    input_len: Annotated[str, Meta(description="Prompt tokens: 512, a range 128:1024, or normal:512:128.")] = "256"
    output_len: Annotated[str, Meta(description="Answer tokens, in the same forms.")] = "64"
    turns: Annotated[int, Meta(ge=1, description="Requests of one session.")] = 4
    think_time: Annotated[float, Meta(ge=0, description="Mean pause of a session's user, in seconds.")] = 0.0
    system_len: Annotated[int, Meta(ge=0, description="Tokens of a system prompt that all sessions share.")] = 0
    documents: Annotated[int, Meta(ge=1, description="Passages in the store of retrieval prompts.")] = 100
    scale_lengths: Annotated[float, Meta(gt=0, description="Multiply a trace's lengths, to fit a smaller model.")] = 1.0
    max_input_len: Annotated[int | None, Meta(description="Leave out longer prompts of a trace.")] = None
    seed: Annotated[int, Meta(ge=0, description="Same seed, same texts and arrivals.")] = 0
    warmup: Annotated[int, Meta(ge=0, description="Requests sent first and not counted.")] = 1
    abort_after: Annotated[float | None, Meta(description="Clients leave after so many seconds.")] = None
    timeout: Annotated[float, Meta(gt=0, description="Longest answer, in seconds; then it is a failure.")] = 600.0
    silence: Annotated[
        float, Meta(gt=0, description="Longest time without a byte, in seconds; then it is a failure.")
    ] = 120.0
    drain: Annotated[float, Meta(ge=0, description="Wait for open answers at the end of --duration, in seconds.")] = (
        60.0
    )
    max_error_rate: Annotated[float, Meta(ge=0, le=1, description="More failures than this share: exit code 1.")] = 0.01

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            parse_lengths(getattr(self, name), name)
        for name in ("num_requests", "duration", "rate", "concurrency", "ramp_to", "max_input_len", "abort_after"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0.")
        if self.rate is not None and self.concurrency is not None:
            raise ConfigError("rate and concurrency exclude each other: an open loop never waits, a closed one always.")
        if self.dataset in ("jsonl", "sharegpt", "azure", "mooncake") and not self.dataset_path:
            raise ConfigError(f"the dataset {self.dataset} needs a dataset_path.")
        if self.replay and (self.rate is not None or self.concurrency is not None):
            raise ConfigError("replay brings its own arrivals: leave out rate and concurrency.")
        if self.replay and self.dataset not in ("azure", "mooncake", "jsonl"):
            raise ConfigError(
                f"replay needs recorded times, which {self.dataset} has not; take azure, mooncake or jsonl."
            )
        if self.ramp_to is not None and (self.rate is None or self.duration is None):
            raise ConfigError("ramp_to needs a rate to begin with and a duration.")

    @property
    def is_open(self) -> bool:
        return self.rate is not None or self.replay


class TargetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the endpoint is spoken to."""

    model: Annotated[str | None, Meta(description="Model name; default: the first that the endpoint lists.")] = None
    endpoint: Annotated[Literal["chat", "completions"], Meta(description="Which API.")] = "chat"
    stream: Annotated[bool, Meta(description="Stream answers; without it there is no time to first token.")] = True
    ignore_eos: Annotated[bool, Meta(description="Ask for answers of exactly the wanted length.")] = True
    temperature: Annotated[float, Meta(ge=0, description="Sampling temperature.")] = 0.0
    extra_body: Annotated[
        str, Meta(description="More fields of each request, as a JSON object; null takes one away.")
    ] = "{}"

    def __post_init__(self) -> None:
        parse_extra(self.extra_body)


def parse_extra(text: str) -> dict[str, Any]:
    """Raises `ConfigError`."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'extra_body is {text!r}; it must be a JSON object such as {{"top_p": 0.9}} ({error}).'
        ) from error
