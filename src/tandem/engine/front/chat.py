"""`POST /v1/chat/completions`."""

from __future__ import annotations

from contextlib import aclosing, closing
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from tandem.engine.answers import Piece
from tandem.engine.front.accounts import final_usage, usage_so_far
from tandem.engine.front.chunks import ChatChunkEncoder
from tandem.engine.front.event_stream import EventStream
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.prepare import Accepted, prepare_chat
from tandem.engine.front.responses import answer_headers, json_response
from tandem.engine.messages import TokenLogprobs
from tandem.protocol.chat import AnswerMessage, ChatChoice, ChatCompletionRequest, ChatCompletionResponse


async def chat_completions(request: web.Request) -> web.StreamResponse:
    front = request.app[FRONT]
    chat, accepted = await prepare_chat(front, request)
    with closing(accepted):
        if chat.stream:
            return await _stream(front, request, chat, accepted)
        return await _answer(front, chat, accepted)


async def _stream(
    front: Front, request: web.Request, chat: ChatCompletionRequest, accepted: Accepted
) -> web.StreamResponse:
    events = EventStream(request, answer_headers(accepted))
    try:
        await _send_pieces(front, chat, accepted, events)
    except Exception as error:
        if not events.is_started or isinstance(error, ConnectionError):
            raise
        await events.fail(error)
    return events.response


async def _send_pieces(front: Front, chat: ChatCompletionRequest, accepted: Accepted, events: EventStream) -> None:
    generation = accepted.generations[0]
    encoder = ChatChunkEncoder(
        accepted.answer_id, front.now_unix(), chat.model, accepted.service_tier, with_usage_key=chat.wants_stream_usage
    )
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            if not piece.has_content:
                continue
            usage = usage_so_far(accepted.generations) if chat.wants_continuous_usage else None
            event = b""
            if piece.is_first:
                event = encoder.opening(piece.index, usage)
                piece.text = generation.echo + piece.text
            if piece.logprobs is not None or piece.finish_reason is not None:
                logprobs = None if piece.logprobs is None else front.logprobs.chat(piece.logprobs)
                event += encoder.full(piece, logprobs, usage)
            elif piece.text:
                event += encoder.text(piece.index, piece.text, usage)
            await events.send(event)
    await events.end(encoder.usage(final_usage(accepted.generations)) if chat.wants_stream_usage else b"")


@dataclass(slots=True)
class _Collected:
    """One answer as it grows."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: Piece | None = None

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.logprobs.extend(piece.logprobs or ())
        self.last = piece


async def _answer(front: Front, chat: ChatCompletionRequest, accepted: Accepted) -> web.Response:
    generation = accepted.generations[0]
    answers = [_Collected([generation.echo]) for _ in generation.answers]
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            answers[piece.index].add(piece)
    prompt_logprobs = generation.prompt_logprobs
    response = ChatCompletionResponse(
        id=accepted.answer_id,
        created=front.now_unix(),
        model=chat.model,
        choices=[_choice(front, index, answer, bool(chat.logprobs)) for index, answer in enumerate(answers)],
        usage=final_usage(accepted.generations),
        service_tier=accepted.service_tier,
        prompt_logprobs=msgspec.UNSET if prompt_logprobs is None else front.logprobs.prompt(prompt_logprobs),
    )
    return json_response(response, headers=answer_headers(accepted))


def _choice(front: Front, index: int, answer: _Collected, with_logprobs: bool) -> ChatChoice:
    assert answer.last is not None, "a finished answer has had a last piece"
    return ChatChoice(
        index=index,
        message=AnswerMessage(content="".join(answer.texts)),
        logprobs=front.logprobs.chat(answer.logprobs) if with_logprobs else None,
        finish_reason=answer.last.finish_reason,
        stop_reason=answer.last.stop_reason,
    )
