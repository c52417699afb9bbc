"""`POST /tokenize` and `POST /detokenize`: the model's tokenizer, for those who count before they ask."""

from __future__ import annotations

from aiohttp import web

from tandem.core.errors import InvalidRequest
from tandem.engine.checks import check_text_length, check_token_ids
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.prepare import read_body
from tandem.engine.front.responses import json_response
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.decoding import decode_detokenize, decode_tokenize
from tandem.protocol.tokenize import DetokenizeResponse, TokenizeRequest, TokenizeResponse


async def tokenize(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    info = front.ready()
    asked = decode_tokenize(await read_body(request), strict_fields=front.config.strict_fields)
    front.warn_unknown_fields(asked.unknown_fields)
    front.check_model(asked.model)
    token_ids = await front.in_thread(_encode, front, asked)
    names = [front.logprobs.spell(token_id) for token_id in token_ids] if asked.return_token_strs else None
    return json_response(
        TokenizeResponse(count=len(token_ids), max_model_len=info.max_model_len, tokens=token_ids, token_strs=names)
    )


async def detokenize(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    info = front.ready()
    asked = decode_detokenize(await read_body(request), strict_fields=front.config.strict_fields)
    front.warn_unknown_fields(asked.unknown_fields)
    front.check_model(asked.model)
    check_token_ids(asked.tokens, info.vocab_size, "tokens")
    text = await front.in_thread(front.text.decode, asked.tokens, skip_special_tokens=False)
    return json_response(DetokenizeResponse(prompt=text))


def _encode(front: Front, asked: TokenizeRequest) -> list[int]:
    longest, limit = front.text.longest_token_bytes, front.ready().max_model_len
    if asked.prompt is not None:
        check_text_length(len(asked.prompt), longest, limit, "prompt")
        return front.text.encode(
            asked.prompt,
            add_special_tokens=asked.add_special_tokens is not False,
            parse_special=asked.parse_special is not False,
        )
    if asked.parse_special:
        raise InvalidRequest("parse_special is for a prompt; in messages the server decides.", param="parse_special")
    assert asked.messages is not None, "decode_tokenize lets exactly one of the two through"
    check_text_length(sum(len(message.text() or "") for message in asked.messages), longest, limit, "messages")
    conversation = ChatCompletionRequest(
        model=front.model_name,
        messages=asked.messages,
        add_special_tokens=asked.add_special_tokens,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        chat_template_kwargs=asked.chat_template_kwargs,
        tools=asked.tools,
    )
    return front.text.render_chat(conversation)
