"""One try at one replica: what is sent, what may come back, and who may be blamed when it doesn't.

An attempt owns its upstream exchange. `begin` returns at the point of no return (the first content of a stream, the
whole of a plain answer); before it, failing costs nothing but time, and another replica may be asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import msgspec

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.errors import TandemError
from tandem.gateway import errors
from tandem.gateway.context import RequestContext
from tandem.gateway.relay import StreamRelay
from tandem.gateway.replicas.base import UpstreamError
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.reported import read_usage
from tandem.gateway.routing.base import Decision
from tandem.gateway.seats import Seat
from tandem.gateway.stream import StreamScanner
from tandem.gateway.upstream.answer import UpstreamAnswer
from tandem.gateway.upstream.client import UpstreamClient
from tandem.gateway.upstream.failures import ConnectionBroken, Malformed, Silent, UpstreamFailure
from tandem.protocol import headers as names
from tandem.protocol.usage import Usage

_MAX_ERROR_BYTES: Final = 1 << 20
_OUR_FAULT: Final = (401, 403, 404, 405)
"""A replica that refuses our credentials, or doesn't have what its pool says: no client can mend that."""


class AttemptFailed(Exception):
    """`error` is what the client is told if nobody else can do better."""

    def __init__(self, replica: Replica, error: TandemError, *, is_retryable: bool, is_replicas_fault: bool) -> None:
        super().__init__(error.message)
        self.replica = replica
        self.error = error
        self.is_retryable = is_retryable
        self.is_replicas_fault = is_replicas_fault


_ABSENT: Final = msgspec.Raw(b"")
_NOTHING: Final = (b"", b"null", b"[]")


class _PlainBody(msgspec.Struct):
    choices: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    object: str | None = None
    usage: msgspec.Raw = _ABSENT
    model: str | None = None


_plain_decoder = msgspec.json.Decoder(_PlainBody)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Attempt:
    """`close` must be called, whatever happened: it cancels what still runs and gives back the replica's room."""

    def __init__(
        self, context: RequestContext, decision: Decision, seat: Seat, client: UpstreamClient, config: UpstreamConfig,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.decision = decision
        self.replica: Replica = decision.replica
        self.relay: StreamRelay | None = None
        self.body = b""
        """Of a plain answer."""
        self.usage: Usage | None = None
        self.sent_s = clock()
        self.seat = seat
        self._context = context
        self._client = client
        self._config = config
        self._clock = clock
        self._answer: UpstreamAnswer | None = None

    async def begin(self) -> None:
        """Raises `AttemptFailed`. Cancelled: the replica's connection is closed before this returns."""
        try:
            answer = await self._send()
            if answer.status >= 300:
                raise await self._refusal(answer)
            if self._context.is_stream and _is_event_stream(answer):
                await self._first_content(answer)
            else:
                await self._whole(answer)
        except UpstreamFailure as failure:
            raise self._failed(failure) from failure

    async def end(self) -> None:
        """The rest of a stream. Raises `AttemptFailed`, which can now only be told, not mended."""
        assert self.relay is not None, "only streams have a rest"
        await self.relay.end()
        if (failure := self._stream_failure(self.relay)) is not None:
            raise failure

    def close(self) -> None:
        if self.relay is not None:
            self.relay.close()
        if self._answer is not None:
            self._answer.close()
        self.seat.close()

    def check(self, now_s: float) -> None:
        """Called now and then: ends the exchange when there was silence for too long."""
        if self._answer is None:
            return
        if (failure := self._silence(now_s)) is not None:
            self._answer.fail(failure)
        elif self.relay is not None and self.relay.behind_for_s(now_s) > self._config.client_stall_timeout_s:
            self.relay.drop_client()

    @property
    def has_content(self) -> bool:
        return self.relay is not None and self.relay.scanner.has_content

    # Sending.

    async def _send(self) -> UpstreamAnswer:
        context, adapter, pool = self._context, self.replica.adapter, self.replica.pool
        body = msgspec.json.encode(adapter.request_fields(context.fields, self._capped(), pool.model))
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        headers[names.REQUEST_ID] = context.client_request_id or context.request_id
        if pool.api_key is not None:
            headers["Authorization"] = f"Bearer {pool.api_key}"
        headers.update(adapter.request_headers(context))
        return await self._client.send(
            self.replica.url, "POST", adapter.path(context.endpoint), headers, body, watch=self._watch
        )

    def _capped(self) -> RequestContext:
        """The request with the pool's cap in it; another pool may have another."""
        context, cap = self._context, self.replica.pool.max_output_tokens
        if cap is None or (context.max_output_tokens is not None and context.max_output_tokens <= cap):
            return context
        return dataclasses.replace(context, max_output_tokens=cap)

    def _watch(self, answer: UpstreamAnswer) -> None:
        self._answer = answer
        self.sent_s = self._clock()

    # What came.

    async def _first_content(self, answer: UpstreamAnswer) -> None:
        context, adapter = self._context, self.replica.adapter
        scanner = StreamScanner(
            adapter.event_error,
            model=None if self.replica.pool.model == context.model else context.model,
            drops_usage=not context.wants_usage,
            max_event_bytes=self._config.max_event_kib << 10,
        )
        self.relay = StreamRelay(answer, scanner, self._clock)
        answer.attach(self.relay)
        await self.relay.first_content()
        if not scanner.has_content and (failure := self._stream_failure(self.relay)) is not None:
            raise failure

    async def _whole(self, answer: UpstreamAnswer) -> None:
        body = await answer.read(self._config.max_answer_mib << 20)
        try:
            plain = _plain_decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Malformed("the answer is not the JSON that was asked for") from error
        if bytes(plain.error) not in _NOTHING or plain.object == "error":
            raise self._refused(self.replica.adapter.error(answer.status, body), None, None)
        if bytes(plain.choices) in _NOTHING and bytes(plain.data) in _NOTHING:
            raise Malformed("the answer has neither choices nor data")
        self.usage = read_usage(plain.usage)
        self.body = body if plain.model in (None, self._context.model) else _rename(body, self._context.model)

    async def _refusal(self, answer: UpstreamAnswer) -> AttemptFailed:
        body = await answer.read(_MAX_ERROR_BYTES)
        error = self.replica.adapter.error(answer.status, body)
        return self._refused(error, _retry_after(answer), body)

    def _refused(self, error: UpstreamError, retry_after_s: float | None, body: bytes | None) -> AttemptFailed:
        """Of an engine's own words. They may echo what we sent it: our credentials never go further."""
        if error.status in _OUR_FAULT or error.status < 400:
            told: TandemError = errors.UpstreamFailed(f"The engine refused the gateway's request ({error.status}).")
            return AttemptFailed(self.replica, told, is_retryable=True, is_replicas_fault=True)
        secret = self.replica.pool.api_key
        if secret and secret in error.message:
            error = _without(error, secret)
        if body is not None and (not _has_openai_shape(body) or (secret and secret.encode() in body)):
            body = None
        is_fault = error.status >= 500
        return AttemptFailed(
            self.replica,
            errors.of_upstream(error, retry_after_s, body),
            is_retryable=error.is_retryable or error.status in (429, 502, 503, 504),
            is_replicas_fault=is_fault,
        )

    def _stream_failure(self, relay: StreamRelay) -> AttemptFailed | None:
        if relay.failure is not None:
            return self._failed(relay.failure)
        if relay.scanner.error is not None:
            return self._refused(relay.scanner.error, None, None)
        return None

    def _failed(self, failure: UpstreamFailure) -> AttemptFailed:
        return AttemptFailed(self.replica, errors.of_failure(failure), is_retryable=True, is_replicas_fault=True)

    # Silence.

    def _silence(self, now_s: float) -> UpstreamFailure | None:
        assert self._answer is not None, "checked by the caller"
        config, relay = self._config, self.relay
        if not self.has_content:
            if self.replica.state == "down":
                return ConnectionBroken("the replica went down")
            limit_s = config.first_token_timeout_s if self._context.is_stream else config.plain_timeout_s
            since_s = self.sent_s if self._context.is_stream else max(self.sent_s, self._answer.last_byte_s)
            return Silent(f"nothing within {limit_s:g} s") if now_s - since_s > limit_s else None
        assert relay is not None, "only streams have content before their end"
        if relay.behind_since_s is not None:
            return None  # the client's silence, not the replica's
        is_late = now_s - relay.last_content_s > config.idle_timeout_s
        return Silent(f"no content for {config.idle_timeout_s:g} s") if is_late else None


def _is_event_stream(answer: UpstreamAnswer) -> bool:
    """An engine that answers a stream request with JSON has an error, or doesn't know streams."""
    return answer.headers.get("content-type", "").startswith("text/event-stream")


def _retry_after(answer: UpstreamAnswer) -> float | None:
    """Whole seconds; the date form is not used by engines and is left out."""
    value = answer.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 7 else None


def _has_openai_shape(body: bytes) -> bool:
    try:
        error = msgspec.json.decode(body, type=dict[str, dict[str, object]]).get("error")
    except (msgspec.DecodeError, RecursionError):
        return False
    return error is not None and isinstance(error.get("message"), str)


def _without(error: UpstreamError, secret: str) -> UpstreamError:
    return UpstreamError(
        error.status, error.message.replace(secret, "[hidden]"), error.type, error.code, error.param, error.is_retryable
    )


def _rename(body: bytes, model: str) -> bytes:
    fields = _fields_decoder.decode(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)
