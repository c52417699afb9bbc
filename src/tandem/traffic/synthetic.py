"""Made-up traffic: random lengths, sessions of several turns, retrieval prompts, and text for recorded lengths."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tandem.traffic.lengths import Lengths
from tandem.traffic.text import TextMaker
from tandem.traffic.trace import TraceRow
from tandem.traffic.work import Conversation, Turn, single, user_turn


def random_requests(
    count: int, inputs: Lengths, outputs: Lengths, text: TextMaker, seed: int
) -> Iterator[Conversation]:
    """Independent requests, no two prompts alike."""
    rng = random.Random(f"{seed} lengths")
    for _ in range(count):
        tokens = inputs.draw(rng)
        yield single(user_turn(text.unique(tokens), tokens, outputs.draw(rng)))


@dataclass(frozen=True, slots=True)
class Sessions:
    """Chats: a shared system prompt, then turns that each add to what was said."""

    num_turns: int = 4
    system_tokens: int = 0
    """Of a system prompt that all sessions share; 0: none."""
    pause_s: float = 0.0
    """Mean time between an answer and the next question; exponential."""


def session_requests(
    count: int, shape: Sessions, inputs: Lengths, outputs: Lengths, text: TextMaker, seed: int
) -> Iterator[Conversation]:
    """`count` conversations of `shape.num_turns` requests each."""
    rng = random.Random(f"{seed} sessions")
    system = ({"role": "system", "content": text.named("system", shape.system_tokens)},) if shape.system_tokens else ()
    for _ in range(count):
        turns = [_session_turn(rng, shape, inputs, outputs, text, is_first=k == 0) for k in range(shape.num_turns)]
        first = turns[0]
        begun = Turn((*system, *first.messages), first.input_tokens + shape.system_tokens, first.max_tokens)
        yield Conversation((begun, *turns[1:]))


def _session_turn(
    rng: random.Random, shape: Sessions, inputs: Lengths, outputs: Lengths, text: TextMaker, *, is_first: bool
) -> Turn:
    tokens = inputs.draw(rng)
    pause_s = rng.expovariate(1 / shape.pause_s) if shape.pause_s and not is_first else 0.0
    return user_turn(text.unique(tokens), tokens, outputs.draw(rng), pause_s=pause_s)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Answers from documents: long passages from a common store, popular ones more often, then a short question."""

    num_documents: int = 100
    documents_each: int = 4
    question_tokens: int = 32


def retrieval_requests(
    count: int, shape: Retrieval, inputs: Lengths, outputs: Lengths, text: TextMaker, seed: int
) -> Iterator[Conversation]:
    """`inputs` is the length of the whole prompt; the passages divide what the question leaves."""
    rng = random.Random(f"{seed} retrieval")
    weights = [1 / rank for rank in range(1, shape.num_documents + 1)]  # Zipf: few passages are asked for often
    for _ in range(count):
        tokens = inputs.draw(rng)
        size = max(1, (tokens - shape.question_tokens) // shape.documents_each)
        picked = sorted(set(rng.choices(range(shape.num_documents), weights, k=shape.documents_each)))
        passages = "\n\n".join(f"[{n}] {text.named(f'passage {n}', size)}" for n in picked)
        question = text.unique(min(tokens, shape.question_tokens))
        prompt = f"Answer from these passages.\n\n{passages}\n\nQuestion: {question}"
        yield single(user_turn(prompt, size * len(picked) + shape.question_tokens, outputs.draw(rng)))


def trace_requests(rows: Iterable[TraceRow], text: TextMaker) -> Iterator[Conversation]:
    """Text for recorded lengths; where the trace says which prefixes were shared, they are."""
    for row in rows:
        if row.hash_ids:
            prompt = text.blocks(row.hash_ids, row.block_tokens, row.input_tokens)
        else:
            prompt = text.unique(row.input_tokens)
        yield single(user_turn(prompt, row.input_tokens, max(1, row.output_tokens)), row.at_s)
