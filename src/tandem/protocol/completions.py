"""`POST /v1/completions`: request, answer and chunks, which share one shape."""

from __future__ import annotations

import msgspec

from tandem.core.errors import InvalidRequest
from tandem.protocol.generation import GenerationRequest
from tandem.protocol.logprobs import CompletionLogprobs, PromptLogprobs
from tandem.protocol.usage import Usage

Prompt = str | list[int]
"""One prompt: a text, or token ids."""


class CompletionRequest(GenerationRequest, kw_only=True, omit_defaults=True):
    """Text to continue. Decoded and checked by `decoding.decode_completion`."""

    prompt: str | list[str | int | list[int]]
    """A text, several texts, token ids, or several lists of token ids."""
    logprobs: int | None = None
    suffix: str | None = None

    def prompts(self) -> list[Prompt]:
        """The prompts in order. Raises `InvalidRequest` for none, an empty one, or kinds mixed."""
        prompts = _split(self.prompt)
        if not prompts:
            raise InvalidRequest("prompt is empty; it must have at least one token.", param="prompt")
        for index, prompt in enumerate(prompts):
            if not prompt:
                name = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
                raise InvalidRequest(f"{name} is empty; it must have at least one token.", param="prompt")
        return prompts


def _split(prompt: str | list[str | int | list[int]]) -> list[Prompt]:
    if isinstance(prompt, str):
        return [prompt]
    texts = [item for item in prompt if isinstance(item, str)]
    ids = [item for item in prompt if isinstance(item, int)]
    lists = [item for item in prompt if isinstance(item, list)]
    if max(len(texts), len(ids), len(lists)) < len(prompt):
        raise InvalidRequest(
            "prompt mixes kinds; it must be a string, a list of strings, a list of token ids, "
            "or a list of lists of token ids.",
            param="prompt",
        )
    return [ids] if ids else [*texts, *lists]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer, or what a chunk adds to it. Answer k to prompt p has the index p·n + k."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """A whole answer, or one event of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    service_tier: str | None = None
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
