"""Offline generation: the engine's core in the caller's own process, without servers.

from tandem import LLM, SamplingParams
outputs = LLM("smollm2-135m").generate(["The capital of France is"], SamplingParams(max_tokens=8))
print(outputs[0].outputs[0].text)
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tandem.config.engine import EngineConfig
from tandem.core.clock import SystemClock
from tandem.core.errors import ConfigError, InvalidRequest
from tandem.core.sampling_params import SamplingParams
from tandem.engine.answers import Answer
from tandem.engine.build import build_engine
from tandem.engine.checks import check_sampling_ids, check_token_ids, fit_to_context
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.progress import ConsoleProgress
from tandem.engine.loading.sources import resolve
from tandem.engine.messages import EngineStats, NewRequest, Output, Ready
from tandem.engine.outputs import CompletionOutput, RequestOutput
from tandem.engine.text.chat_prompt import chat_template_of, render_and_encode
from tandem.engine.text.text_stream import TextStream
from tandem.engine.text.tokenizer import load_tokenizer

Prompt = str | list[int]
Conversation = Sequence[Mapping[str, Any]]


class LLM:
    """A model, loaded. `options` are the fields of `EngineConfig`: `LLM("…", block_size=32, dtype="float32")`.

    Raises `ModelError` for a model that can't be served, `ConfigError` and `MemoryTooSmall` for settings that can't be.
    """

    def __init__(self, model: str = "smollm2-135m", **options: Any) -> None:
        try:
            config = msgspec.convert({"model": model, **options}, EngineConfig)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from error
        self._load(config)

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLM:
        """The same from a whole configuration."""
        llm = cls.__new__(cls)
        llm._load(config)
        return llm

    def _load(self, config: EngineConfig) -> None:
        checkpoint = open_checkpoint(resolve(config.model, progress=ConsoleProgress()))
        self.tokenizer = load_tokenizer(checkpoint.text)
        self._template = chat_template_of(self.tokenizer, config.chat_template)
        built = build_engine(config, checkpoint, SystemClock())
        self.info: Ready = built.ready
        self._core = built.core
        self._clock = SystemClock()
        self._num_requests = 0

    @property
    def stats(self) -> EngineStats:
        """The engine's gauges and counters."""
        return self._core.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts, each a text or a list of token ids, run together as memory allows.

        One set of parameters for all, or one for each prompt. `use_tqdm`: show a progress bar (vLLM's name for it).
        Raises `InvalidRequest` before anything runs.
        """
        if not isinstance(prompts, str | Mapping | Sequence):
            raise InvalidRequest(f"prompts must be a prompt or a list of them, not {prompts!r:.60}.", param="prompts")
        listed = [_plain(prompt) for prompt in ([prompts] if _is_single(prompts) else prompts)]
        params = _params_for_each(sampling_params, len(listed))
        requests = [self._request(prompt, sampling) for prompt, sampling in zip(listed, params, strict=True)]
        texts = [prompt if isinstance(prompt, str) else None for prompt in listed]
        return self._run(requests, texts, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """The same for conversations: lists of `{"role": …, "content": …}`, put in the model's own chat template."""
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: list[Any] = [messages] if one else list(messages)
        prompts: list[Prompt] = [self._render(conversation) for conversation in conversations]
        return self.generate(prompts, sampling_params, use_tqdm)

    def stream_chat(
        self, messages: Conversation, sampling_params: SamplingParams | None = None
    ) -> Generator[str, None, None]:
        """One answer, as text that grows. Closing the iterator stops the generation."""
        sampling = sampling_params or SamplingParams()
        answer = self._answer(0, sampling)
        with closing(self._stream(self._render(messages), sampling)) as outputs:
            for output in outputs:
                if (piece := answer.take(output, self._clock.now())) is not None and piece.text:
                    yield piece.text

    def stream_tokens(self, prompt: Prompt, sampling_params: SamplingParams) -> Generator[int, None, None]:
        """One answer's token ids as they come, the one that ends it included."""
        with closing(self._stream(prompt, sampling_params)) as outputs:
            for output in outputs:
                yield from output.token_ids

    def _stream(self, prompt: Prompt, sampling: SamplingParams) -> Generator[Output, None, None]:
        request = self._request(prompt, sampling)
        self._core.add(request)
        try:
            yield from self._outputs()
        finally:
            self._core.abort(request.request_id)

    def reset_prefix_cache(self) -> None:
        """Forget what the prefix cache holds for nobody."""
        self._core.scheduler.kv.pool.clear_cache()

    def _render(self, messages: Conversation) -> list[int]:
        return render_and_encode(self.tokenizer, self._template, list(messages))

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> NewRequest:
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        check_token_ids(token_ids, self.info.vocab_size, "prompts")
        check_sampling_ids(sampling, self.info.vocab_size)
        sampling = fit_to_context(
            sampling, len(token_ids), self.info.max_model_len, param="prompts", is_limit_given=False
        )
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(62))
        self._num_requests += 1
        return NewRequest(
            request_id=str(self._num_requests - 1),
            prompt_token_ids=list(token_ids),
            sampling=sampling,
            arrival_s=self._clock.now(),
        )

    def _run(self, requests: list[NewRequest], texts: list[str | None], show: bool) -> list[RequestOutput]:
        results = {
            request.request_id: RequestOutput(
                request.request_id,
                text,
                request.prompt_token_ids,
                [CompletionOutput(index) for index in range(request.sampling.n)],
            )
            for request, text in zip(requests, texts, strict=True)
        }
        answers = {
            (r.request_id, index): self._answer(index, r.sampling) for r in requests for index in range(r.sampling.n)
        }
        for request in requests:
            self._core.add(request)
        columns = (TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        # To standard error, and gone when done: standard output is for the texts.
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as progress:
            task = progress.add_task("", total=len(answers))
            try:
                for output in self._outputs():
                    _add(
                        results[output.request_id], output, answers[output.request_id, output.index], self._clock.now()
                    )
                    progress.advance(task, output.finish_reason is not None)
            finally:
                # Interrupted in the middle: leave nothing behind for the next call to find.
                for request in requests:
                    self._core.abort(request.request_id)
        return list(results.values())

    def _outputs(self) -> Iterator[Output]:
        while self._core.has_work:
            yield from self._core.step()

    def _answer(self, index: int, sampling: SamplingParams) -> Answer:
        return Answer(index, TextStream.of(self.tokenizer.token_bytes, sampling), sampling)


def _plain(prompt: Any) -> Prompt:
    """A text or token ids; vLLM's `{"prompt": …}` and `{"prompt_token_ids": …}` are taken too."""
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list | tuple) and all(type(token_id) is int for token_id in prompt):
        return list(prompt)
    raise InvalidRequest(f"a prompt must be a text or a list of token ids, not {prompt!r:.60}.", param="prompts")


def _is_single(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str | Mapping) or (bool(prompts) and isinstance(prompts[0], int))


def _params_for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise InvalidRequest(f"sampling_params must be SamplingParams, or a list of them, not {params!r:.60}.")
    if len(params) != count:
        raise InvalidRequest(f"{len(params)} sampling parameters were given for {count} prompts; give one, or as many.")
    return params


def _add(result: RequestOutput, output: Output, answer: Answer, now_s: float) -> None:
    """What an output adds to its answer; the text as the HTTP front would show it."""
    piece = answer.take(output, now_s)
    assert piece is not None, "the core sends nothing after an end"
    completion = result.outputs[output.index]
    completion.token_ids += output.token_ids
    completion.text += piece.text
    if output.logprobs is not None:
        completion.logprobs = [*(completion.logprobs or []), *output.logprobs]
    if output.prompt_logprobs is not None:
        result.prompt_logprobs = output.prompt_logprobs
    completion.finish_reason, completion.stop_reason = piece.finish_reason, piece.stop_reason
    completion.usage = output.usage
