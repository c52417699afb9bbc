"""Usage as engines report it, which is not always as OpenAI writes it: embeddings have no completion tokens, details
may be null, and some engines send what can't be. What can't be read is as good as not said; no answer fails for it.
"""

from __future__ import annotations

import msgspec

from tandem.protocol.usage import PromptTokensDetails, TandemUsage, Usage


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Reported(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    tandem: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(_Reported)
_tandem_decoder = msgspec.json.Decoder(TandemUsage | None)


def read_usage(raw: msgspec.Raw) -> Usage | None:
    """None: nothing was said, or nothing that can be understood."""
    if bytes(raw) in (b"", b"null", b"{}"):
        return None
    try:
        told = _decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    cached = None if told.prompt_tokens_details is None else told.prompt_tokens_details.cached_tokens
    outputs = told.completion_tokens or 0
    return Usage(
        prompt_tokens=told.prompt_tokens,
        completion_tokens=outputs,
        total_tokens=told.prompt_tokens + outputs,
        prompt_tokens_details=None if cached is None else PromptTokensDetails(cached_tokens=cached),
        tandem=_times(told.tandem),
    )


def _times(raw: msgspec.Raw) -> TandemUsage | msgspec.UnsetType:
    if not bytes(raw):
        return msgspec.UNSET
    try:
        return _tandem_decoder.decode(raw) or msgspec.UNSET
    except msgspec.DecodeError:
        return msgspec.UNSET
