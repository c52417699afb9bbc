"""Before the test: is anybody there, has it the model, and how many tokens does it make of a word?

Whatever would fail every request is found here, and said in one sentence.
"""

from __future__ import annotations

import msgspec

from tandem.loadtest.answer import Answer
from tandem.loadtest.bodies import Bodies
from tandem.loadtest.client import Client
from tandem.loadtest.errors import WrongTarget
from tandem.loadtest.record import Record
from tandem.loadtest.settings import TargetSettings
from tandem.traffic.text import Ratio, TextMaker, fit_ratio
from tandem.traffic.work import user_turn

PROBE_WORDS = (16, 144)


class _Count(msgspec.Struct):
    count: int


async def find_model(client: Client, wanted: str | None) -> str:
    """The model to ask for. Raises `Unreachable`, `WrongTarget`."""
    url = client.endpoints[0].url
    status, body = await client.fetch("GET", "/v1/models")
    if status in (401, 403):
        raise WrongTarget(f"{url} wants an API key (HTTP {status}): give --api-key, or set OPENAI_API_KEY.")
    names = _names(body) if status == 200 else []
    if wanted is None and not names:
        raise WrongTarget(f"{url} doesn't list its models (HTTP {status}); say which with --model.")
    if wanted is not None and names and wanted not in names:
        raise WrongTarget(f"{url} has no model {wanted!r}; it has {', '.join(names[:8])}.")
    return wanted or names[0]


async def reach_all(client: Client) -> None:
    """Every endpoint beyond the first answers too. Raises `Unreachable`."""
    for index in range(1, len(client.endpoints)):
        await client.fetch("GET", "/v1/models", endpoint=index)


async def takes_ignore_eos(client: Client, target: TargetSettings, model: str) -> bool:
    """Some endpoints refuse fields that aren't OpenAI's. Raises `WrongTarget` where it isn't that field's fault."""
    if not target.ignore_eos:
        return False
    first = await _probe(client, target, model, ignore_eos=True)
    if first.is_ok:
        return True
    second = await _probe(client, target, model, ignore_eos=False)
    if not second.is_ok:
        raise WrongTarget(f"a first request to {client.endpoints[0].url} failed: {second.problem}.")
    return False


async def _probe(
    client: Client, target: TargetSettings, model: str, *, ignore_eos: bool, words: int = 8, name: str = "probe"
) -> Record:
    """One short request, recorded without times."""
    turn = user_turn(TextMaker(0).named(name, words), words, 2)
    bodies = Bodies(target, model, ignore_eos=ignore_eos)
    record = Record(0.0, words, 2)
    answer = Answer(record, lambda: 0.0, is_streamed=target.stream)
    await client.send(bodies.path, bodies.encode(turn.messages, turn, {}), answer)
    return record


async def measure_ratio(client: Client, target: TargetSettings, model: str, *, ignore_eos: bool) -> Ratio | None:
    """From `/tokenize` where it is offered, else from the usage of two probes; None where neither tells."""
    short, long = PROBE_WORDS
    counts = [await _count(client, target, model, words) for words in (short, long)]
    if None in counts:
        probes = [
            await _probe(client, target, model, ignore_eos=ignore_eos, words=words, name=f"ratio {words}")
            for words in PROBE_WORDS
        ]
        counts = [record.prompt_tokens if record.is_ok else None for record in probes]
    if counts[0] is None or counts[1] is None or counts[0] == counts[1]:
        return None
    return fit_ratio((short, counts[0]), (long, counts[1]))


async def _count(client: Client, target: TargetSettings, model: str, words: int) -> int | None:
    text = TextMaker(0).named(f"ratio {words}", words)
    form = {"messages": [{"role": "user", "content": text}]} if target.endpoint == "chat" else {"prompt": text}
    status, body = await client.fetch("POST", "/tokenize", msgspec.json.encode({"model": model, **form}))
    try:
        return msgspec.json.decode(body, type=_Count).count if status == 200 else None
    except msgspec.DecodeError:
        return None


def _names(body: bytes) -> list[str]:
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except msgspec.DecodeError:
        return []


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    """Only what is needed: servers differ in the rest."""

    data: list[_Model]
