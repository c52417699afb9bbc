"""`POST /v1/completions`: one or several prompts, each continued n times. Answer k to prompt p is choice p·n + k."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, closing

import msgspec
from aiohttp import web

from tandem.engine.answers import Piece
from tandem.engine.front.accounts import final_usage, usage_so_far
from tandem.engine.front.chunks import CompletionChunkEncoder
from tandem.engine.front.event_stream import EventStream
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.generation import Generation
from tandem.engine.front.logprobs import OffsetCounter
from tandem.engine.front.prepare import Accepted, prepare_completion
from tandem.engine.front.responses import answer_headers, json_response
from tandem.engine.front.together import run_together
from tandem.engine.messages import TokenLogprobs
from tandem.protocol.completions import CompletionChoice, CompletionRequest, CompletionResponse
from tandem.protocol.logprobs import CompletionLogprobs


async def completions(request: web.Request) -> web.StreamResponse:
    front = request.app[FRONT]
    completion, accepted = await prepare_completion(front, request)
    with closing(accepted):
        if completion.stream:
            return await _stream(front, request, completion, accepted)
        return await _answer(front, completion, accepted)


class _ChoiceLogprobs:
    """One choice's logprobs, piece by piece: the echoed prompt's first, and offsets that go on from piece to piece."""

    def __init__(self, front: Front, request: CompletionRequest, generation: Generation) -> None:
        self._front = front
        self._num_top = request.logprobs
        self._echo = bool(request.echo)
        self._generation = generation
        self._offsets = OffsetCounter()

    def take(self, entries: Sequence[TokenLogprobs], *, is_first: bool) -> CompletionLogprobs | None:
        if self._num_top is None:
            return None
        formatter = self._front.logprobs
        prompt_entries = self._generation.prompt_logprobs
        if not (is_first and self._echo and prompt_entries):
            return formatter.completion(entries, self._num_top, self._offsets)
        prompt_ids = self._generation.new.prompt_token_ids
        shaped = formatter.echoed(prompt_ids, prompt_entries, self._num_top, self._offsets)
        formatter.extend(shaped, entries, self._num_top, self._offsets)
        return shaped


async def _stream(
    front: Front, request: web.Request, completion: CompletionRequest, accepted: Accepted
) -> web.StreamResponse:
    events = EventStream(request, answer_headers(accepted))
    encoder = CompletionChunkEncoder(
        accepted.answer_id,
        front.now_unix(),
        completion.model,
        accepted.service_tier,
        with_usage_key=completion.wants_stream_usage,
    )
    try:
        await run_together(
            [_send_pieces(front, completion, accepted, one, encoder, events) for one in accepted.generations]
        )
        await events.end(encoder.usage(final_usage(accepted.generations)) if completion.wants_stream_usage else b"")
    except Exception as error:
        if not events.is_started or isinstance(error, ConnectionError):
            raise
        await events.fail(error)
    return events.response


async def _send_pieces(
    front: Front,
    completion: CompletionRequest,
    accepted: Accepted,
    generation: Generation,
    encoder: CompletionChunkEncoder,
    events: EventStream,
) -> None:
    logprobs = {answer.index: _ChoiceLogprobs(front, completion, generation) for answer in generation.answers}
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            if not piece.has_content:
                continue
            if piece.is_first:
                piece.text = generation.echo + piece.text
            usage = usage_so_far(accepted.generations) if completion.wants_continuous_usage else None
            if completion.logprobs is None and piece.finish_reason is None:
                await events.send(encoder.text(piece.index, piece.text, usage))
                continue
            shaped = logprobs[piece.index].take(piece.logprobs or (), is_first=piece.is_first)
            await events.send(encoder.full(piece, shaped, usage))


class _Collected:
    """One choice as it grows."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.texts = [generation.echo]
        self.logprobs: list[TokenLogprobs] = []
        self.last: Piece | None = None

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.logprobs.extend(piece.logprobs or ())
        self.last = piece


async def _answer(front: Front, completion: CompletionRequest, accepted: Accepted) -> web.Response:
    choices = {a.index: _Collected(generation) for generation in accepted.generations for a in generation.answers}

    async def collect(generation: Generation) -> None:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                choices[piece.index].add(piece)

    await run_together([collect(generation) for generation in accepted.generations])
    response = CompletionResponse(
        id=accepted.answer_id,
        created=front.now_unix(),
        model=completion.model,
        choices=[_choice(front, completion, index, choices[index]) for index in sorted(choices)],
        usage=final_usage(accepted.generations),
        service_tier=accepted.service_tier,
    )
    return json_response(response, headers=answer_headers(accepted))


def _choice(front: Front, completion: CompletionRequest, index: int, collected: _Collected) -> CompletionChoice:
    assert collected.last is not None, "a finished answer has had a last piece"
    generation = collected.generation
    asked_prompt = completion.prompt_logprobs is not None and generation.prompt_logprobs is not None
    return CompletionChoice(
        index=index,
        text="".join(collected.texts),
        logprobs=_ChoiceLogprobs(front, completion, generation).take(collected.logprobs, is_first=True),
        finish_reason=collected.last.finish_reason,
        stop_reason=collected.last.stop_reason,
        prompt_logprobs=front.logprobs.prompt(generation.prompt_logprobs or []) if asked_prompt else msgspec.UNSET,
    )
