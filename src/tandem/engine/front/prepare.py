"""From an HTTP request to accepted generations. Whatever can be refused is refused here, cheapest check first:

whether we take requests → JSON and fields → model name → ranges → vocabulary → room for requests → [tokenise, in a
thread] → prompt ids and length → room for tokens. Nothing has reached the engine when one of these raises.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from tandem.core.errors import InvalidRequest, RequestTimeout, RequestTooLarge
from tandem.core.sampling_params import SamplingParams
from tandem.core.types import ServiceClass
from tandem.engine.checks import check_sampling_ids, check_text_length, check_token_ids, fit_to_context
from tandem.engine.front.admission import Ticket
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.generation import Generation
from tandem.engine.messages import NewRequest, Ready
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.completions import CompletionRequest, Prompt
from tandem.protocol.decoding import decode_chat, decode_completion
from tandem.protocol.generation import GenerationRequest
from tandem.protocol.headers import EngineHeaders, read_engine_headers
from tandem.protocol.sampling import to_sampling_params
from tandem.protocol.service_tier import class_of_tier, tier_used

BODY_SILENCE_S: Final = 30.0
RequestT = TypeVar("RequestT", bound=GenerationRequest)


class EncodedPrompt(NamedTuple):
    """A prompt's tokens, and its text where the answer is to repeat it."""

    token_ids: list[int]
    echo: str = ""


@dataclass(slots=True)
class Accepted:
    """A request whose generations may run. `close` gives its places back, however it ended."""

    answer_id: str
    sampling: SamplingParams
    service_class: ServiceClass
    service_tier: str
    generations: list[Generation]
    tickets: list[Ticket]

    def close(self) -> None:
        for ticket in self.tickets:
            ticket.close()


async def read_body(request: web.Request) -> bytes:
    """The whole body. A length announced beyond the limit is not even read; a shutdown doesn't wait for a slow sender.

    Raises `RequestTooLarge`, `RequestTimeout` when nothing comes for too long, `InvalidRequest` for a broken encoding.
    """
    limit, parts, size = request.client_max_size, [], 0
    too_large = RequestTooLarge(f"The body is larger than {limit} bytes, the most this server reads.")
    if (request.content_length or 0) > limit:
        raise too_large
    with request.app[FRONT].reading_body():
        while part := await _next_part(request):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise too_large
    return b"".join(parts)


async def _next_part(request: web.Request) -> bytes:
    """What of the body has come; b"" at its end."""
    try:
        async with asyncio.timeout(BODY_SILENCE_S):
            return await request.content.readany()
    except TimeoutError as error:
        raise RequestTimeout(f"Nothing of the body came for {BODY_SILENCE_S:g} s.") from error
    except (HttpProcessingError, RequestPayloadError) as error:
        raise InvalidRequest(
            f"The body can't be read: {type(error).__name__}. Is its encoding as announced?"
        ) from error


async def prepare_chat(front: Front, request: web.Request) -> tuple[ChatCompletionRequest, Accepted]:
    """Raises a `TandemError` with the status to answer."""
    with front.counting_refusals():
        arrival_s = front.clock.now()
        info = front.ready()
        chat = decode_chat(await read_body(request), strict_fields=front.config.strict_fields)
        sampling = _check(front, info, chat)

        num_chars = sum(len(message.text() or "") for message in chat.messages)
        check_text_length(num_chars, front.text.longest_token_bytes, info.max_model_len, "messages")

        def encode() -> list[EncodedPrompt]:
            return [EncodedPrompt(front.text.render_chat(chat), _chat_echo(chat))]

        limit_param = None if chat.max_tokens is None else "max_tokens"
        limit_param = limit_param if chat.max_completion_tokens is None else "max_completion_tokens"
        draft = _Draft(front, info, request.headers, arrival_s, sampling, "messages", limit_param)
        return chat, await draft.accept(chat, "chatcmpl-", 1, encode)


async def prepare_completion(front: Front, request: web.Request) -> tuple[CompletionRequest, Accepted]:
    """Raises a `TandemError` with the status to answer."""
    with front.counting_refusals():
        arrival_s = front.clock.now()
        info = front.ready()
        completion = decode_completion(await read_body(request), strict_fields=front.config.strict_fields)
        sampling = _check(front, info, completion)
        prompts = completion.prompts()
        for prompt in prompts:
            if isinstance(prompt, str):
                check_text_length(len(prompt), front.text.longest_token_bytes, info.max_model_len, "prompt")
            else:
                check_token_ids(prompt, info.vocab_size, "prompt")

        def encode() -> list[EncodedPrompt]:
            return [_encode_prompt(front, completion, prompt) for prompt in prompts]

        limit_param = None if completion.max_tokens is None else "max_tokens"
        draft = _Draft(front, info, request.headers, arrival_s, sampling, "prompt", limit_param)
        return completion, await draft.accept(completion, "cmpl-", len(prompts), encode)


def _check(front: Front, info: Ready, request: GenerationRequest) -> SamplingParams:
    front.warn_unknown_fields(request.unknown_fields)
    front.check_model(request.model)
    sampling = to_sampling_params(request)
    check_sampling_ids(sampling, info.vocab_size)
    return sampling


def _chat_echo(chat: ChatCompletionRequest) -> str:
    """vLLM's rule: only an assistant's last message is repeated, for the answer goes on where it ends."""
    last = chat.messages[-1]
    return (last.text() or "") if chat.echo and last.role == "assistant" else ""


def _encode_prompt(front: Front, request: CompletionRequest, prompt: Prompt) -> EncodedPrompt:
    """Control tokens spelled out in a raw prompt act as such: whoever writes raw prompts writes them on purpose."""
    if isinstance(prompt, str):
        with_special = request.add_special_tokens is not False
        ids = front.text.encode(prompt, add_special_tokens=with_special, parse_special=True)
        return EncodedPrompt(ids, prompt if request.echo else "")
    if not request.echo:
        return EncodedPrompt(prompt)
    return EncodedPrompt(
        prompt, front.text.decode(prompt, skip_special_tokens=request.skip_special_tokens is not False)
    )


@dataclass(slots=True)
class _Draft:
    """What is known of a request before it is tokenised."""

    front: Front
    info: Ready
    headers: Mapping[str, str]
    arrival_s: float
    sampling: SamplingParams
    param: str
    """The field that holds the prompt."""
    limit_param: str | None
    """The field in which the client limited the answer; None where it didn't."""

    async def accept(
        self, request: GenerationRequest, prefix: str, num_prompts: int, encode: Callable[[], list[EncodedPrompt]]
    ) -> Accepted:
        """Take places, tokenise, and make the generations; the places are given back if anything raises."""
        front, admission = self.front, self.front.admission
        decided = read_engine_headers(self.headers)
        service_class = decided.service_class or class_of_tier(request.service_tier)
        tier = tier_used(request.service_tier, service_class)
        tickets = admission.admit(num_prompts, self.sampling.n, self.info.max_num_seqs, front.client.stats)
        accepted = Accepted(prefix + secrets.token_hex(16), self.sampling, service_class, tier, [], tickets)
        with ExitStack() as on_failure:
            on_failure.callback(accepted.close)
            prompts = await front.in_thread(encode)
            fitted = [self._fit(prompt) for prompt in prompts]
            admission.charge_tokens(tickets, [len(prompt.token_ids) for prompt in prompts], front.client.stats)
            for number, (prompt, sampling) in enumerate(zip(prompts, fitted, strict=True)):
                new = self._new(request, accepted, decided, prompt, sampling)
                accepted.generations.append(Generation(front, new, tickets[number], number * sampling.n, prompt.echo))
            on_failure.pop_all()
        return accepted

    def _new(
        self,
        request: GenerationRequest,
        accepted: Accepted,
        decided: EngineHeaders,
        prompt: EncodedPrompt,
        sampling: SamplingParams,
    ) -> NewRequest:
        """The engine's request. Its id is ours: two clients may call theirs the same."""
        number = len(accepted.generations)
        return NewRequest(
            request_id=accepted.answer_id if len(accepted.tickets) == 1 else f"{accepted.answer_id}-{number}",
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            priority=(request.priority or 0) if decided.priority is None else decided.priority,
            service_class=accepted.service_class,
            cache_salt=decided.cache_salt or request.cache_salt,
            arrival_s=self.arrival_s,
        )

    def _fit(self, prompt: EncodedPrompt) -> SamplingParams:
        sampling = fit_to_context(
            self.sampling,
            len(prompt.token_ids),
            self.info.max_model_len,
            param=self.param,
            is_limit_given=self.limit_param is not None,
            limit_param=self.limit_param or "max_tokens",
        )
        return sampling if sampling.seed is not None else replace(sampling, seed=self.front.draw_seed())
