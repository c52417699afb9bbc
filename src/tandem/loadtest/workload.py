"""Settings → conversations and arrival times."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from tandem.core.errors import ConfigError
from tandem.loadtest.runner import Load
from tandem.loadtest.settings import LoadSettings
from tandem.traffic import arrivals, synthetic
from tandem.traffic.datasets import read_jsonl, read_sharegpt
from tandem.traffic.lengths import parse_lengths
from tandem.traffic.text import TextMaker
from tandem.traffic.trace import TraceRow, read_trace
from tandem.traffic.work import Conversation

DEFAULT_REQUESTS = 100
DEFAULT_CONCURRENCY = 8
_ENDLESS = 1 << 40


def make_load(settings: LoadSettings, text: TextMaker) -> Load:
    """Raises `DatasetError`, `ConfigError`."""
    if settings.replay:
        return _replayed(settings, text)
    concurrency = settings.concurrency or DEFAULT_CONCURRENCY
    conversations = make_conversations(settings, text)
    return Load(conversations, make_offsets(settings), concurrency, settings.duration, settings.drain)


def _replayed(settings: LoadSettings, text: TextMaker) -> Load:
    """Texts of a trace are made when their time comes: all at once they would fill the memory."""
    conversations: Iterable[Conversation]
    if settings.dataset == "jsonl":
        conversations = sorted(_own(settings, num_requests(settings), text), key=lambda c: c.at_s or 0.0)
        times = [c.at_s for c in conversations if c.at_s is not None]
        if len(times) < len(conversations):
            raise ConfigError(f"{settings.dataset_path} can't be replayed: not every line has a timestamp_s.")
    else:
        rows = list(_rows(settings, num_requests(settings)))
        conversations, times = synthetic.trace_requests(rows, text), [row.at_s for row in rows]
    offsets = arrivals.replay((at_s - times[0] for at_s in times), settings.speed)
    return Load(conversations, offsets, duration_s=settings.duration, drain_s=settings.drain)


def make_offsets(settings: LoadSettings) -> Iterator[float] | None:
    """None for a closed loop."""
    if settings.rate is None:
        return None
    if settings.ramp_to is not None and settings.duration is not None:
        return arrivals.ramp(settings.rate, settings.ramp_to, settings.duration)
    if settings.constant:
        return arrivals.constant(settings.rate)
    return arrivals.gamma(settings.rate, settings.burstiness, settings.seed)


def num_requests(settings: LoadSettings) -> int | None:
    """At most so many; None: as many as the duration lets through."""
    if settings.num_requests is None and settings.duration is None and not settings.replay:
        return DEFAULT_REQUESTS
    return settings.num_requests


def make_conversations(settings: LoadSettings, text: TextMaker) -> Iterator[Conversation]:
    count = num_requests(settings)
    if settings.dataset in ("azure", "mooncake"):
        return iter(synthetic.trace_requests(_rows(settings, count), text))
    if settings.dataset in ("jsonl", "sharegpt"):
        return _own(settings, count, text)
    inputs, outputs = parse_lengths(settings.input_len, "input_len"), parse_lengths(settings.output_len, "output_len")
    many = count or _ENDLESS
    if settings.dataset == "sessions":
        shape = synthetic.Sessions(settings.turns, settings.system_len, settings.think_time)
        return synthetic.session_requests(-(-many // settings.turns), shape, inputs, outputs, text, settings.seed)
    if settings.dataset == "retrieval":
        store = synthetic.Retrieval(settings.documents)
        return synthetic.retrieval_requests(many, store, inputs, outputs, text, settings.seed)
    return synthetic.random_requests(many, inputs, outputs, text, settings.seed)


def _rows(settings: LoadSettings, count: int | None) -> Iterator[TraceRow]:
    assert settings.dataset_path is not None
    rows = [_scaled(row, settings.scale_lengths) for row in read_trace(Path(settings.dataset_path))]
    limit = settings.max_input_len
    rows = [row for row in rows if limit is None or row.input_tokens <= limit]
    if not rows:
        raise ConfigError(f"no request of {settings.dataset_path} has at most {limit} prompt tokens.")
    # A replay ends with its trace; other arrivals begin it again. Shared prefixes are then shared with the first round.
    endless = rows if settings.replay else itertools.cycle(rows)
    return itertools.islice(endless, count)


def _scaled(row: TraceRow, factor: float) -> TraceRow:
    if factor == 1.0:
        return row
    lengths = max(1, round(row.input_tokens * factor)), max(1, round(row.output_tokens * factor))
    return TraceRow(row.at_s, *lengths, row.hash_ids, max(1, round(row.block_tokens * factor)) if row.hash_ids else 0)


def _own(settings: LoadSettings, count: int | None, text: TextMaker) -> Iterator[Conversation]:
    """The user's file, from its beginning again as often as needed. Repeated prompts hit the prefix cache."""
    assert settings.dataset_path is not None
    path = Path(settings.dataset_path)
    if settings.dataset == "jsonl":
        max_tokens = round(parse_lengths(settings.output_len, "output_len").average)
        found = read_jsonl(path, max_tokens, text.ratio)
    else:
        found = read_sharegpt(path, text.ratio, settings.seed)
    limit = settings.max_input_len
    found = [c for c in found if limit is None or c.turns[0].input_tokens <= limit]
    if not found:
        raise ConfigError(f"no request of {path} has at most {limit} prompt tokens.")
    return itertools.islice(found if settings.replay else itertools.cycle(found), count)
