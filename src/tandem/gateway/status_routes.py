"""`GET /tandem/route` explains where a request would go; `GET /tandem/gateway` is the gateway's state, for people and
for `tandem top`. Neither holds a word of anybody's prompt.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from tandem.core.errors import InvalidRequest
from tandem.core.types import ServiceClass
from tandem.gateway.context import Caller, RequestContext
from tandem.gateway.parsing import Arrival
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.explain import RouteExplanation, explain
from tandem.gateway.store.http import choice, json_response, whole_number

if TYPE_CHECKING:
    from tandem.gateway.assembly import Assembly

_MOST_TOKENS = 1 << 30


class ReplicaStatus(msgspec.Struct, kw_only=True):
    id: str
    url: str
    state: str
    reason: str
    in_flight: int
    in_flight_by_class: dict[ServiceClass, int]
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    queued_prompt_tokens: int | None = None
    slots_allocated: int | None = None
    slots_empty: int | None = None
    step_s: float | None = None
    """Of a step at the present number of requests, as the model of this replica predicts it."""
    signals_age_s: float | None = None


class PoolStatus(msgspec.Struct, kw_only=True):
    name: str
    model: str
    aliases: list[str]
    engine: str
    roles: list[ServiceClass]
    price_per_hour: float
    replicas: list[ReplicaStatus]


class GatewayStatus(msgspec.Struct, kw_only=True):
    time: float
    """Unix seconds."""
    is_draining: bool
    num_running: int
    waiting: dict[str, int]
    """model → requests in the waiting rooms."""
    longest_wait_s: float
    is_database_up: bool
    num_ledger_rows_waiting: int
    num_batches_active: int
    policy: str
    pools: list[PoolStatus]


def status_routes(assembly: Assembly) -> list[web.RouteDef]:
    """For admins."""
    service = _Status(assembly)
    return [
        web.get("/tandem/gateway", service.gateway),
        web.get("/tandem/route", service.route_of_sizes),
        web.post("/tandem/route", service.route_of_request),
    ]


class _Status:
    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly

    async def gateway(self, request: web.Request) -> web.Response:
        parts = self._assembly
        status = GatewayStatus(
            time=time.time(),
            is_draining=parts.gateway.is_draining,
            num_running=sum(replica.in_flight for replica in parts.pools.all_replicas()),
            waiting=parts.admission.waiting_models(),
            longest_wait_s=round(parts.admission.longest_wait_s(), 3),
            is_database_up=parts.database.is_up,
            num_ledger_rows_waiting=parts.ledger.num_waiting,
            num_batches_active=parts.batches.num_active,
            policy=parts.gateway.dispatcher.policy.name,
            pools=[self._pool(pool) for pool in parts.pools.pools],
        )
        return json_response(status)

    async def route_of_sizes(self, request: web.Request) -> web.Response:
        """?model=…&class=…&prompt_tokens=…&output_tokens=…&session=…: no request is needed."""
        model = request.query.get("model")
        if not model:
            raise InvalidRequest("model is missing; name the model that the request would be for.", param="model")
        service_class: ServiceClass = choice(request, "class", "interactive", ("interactive", "batch"))  # type: ignore[assignment]
        context = RequestContext(
            request_id="explain",
            client_request_id=None,
            endpoint="/v1/chat/completions",
            caller=Caller(),
            service_class=service_class,
            goal=self._assembly.gateway.parser.config.goals[service_class],
            model=model,
            body=b"",
            is_stream=True,
            wants_usage=False,
            num_answers=1,
            max_output_tokens=None,
            arrived_s=self._assembly.gateway.clock.now(),
            prompt_bytes=0,
            prompt_tokens=whole_number(request, "prompt_tokens", 500, 0, _MOST_TOKENS),
            output_tokens=whole_number(request, "output_tokens", 200, 0, _MOST_TOKENS),
            session=request.query.get("session"),
        )
        return json_response(self._explained(context))

    async def route_of_request(self, request: web.Request) -> web.Response:
        """The body of a chat completion, which is read and sent nowhere."""
        arrival = Arrival("/v1/chat/completions", await request.read(), "explain", None, request.query.get("session"))
        context = self._assembly.gateway.parser.parse(arrival, Caller(), self._assembly.gateway.clock.now())
        return json_response(self._explained(context))

    def _explained(self, context: RequestContext) -> RouteExplanation:
        parts = self._assembly
        replicas = parts.pools.replicas(context.model, context.service_class)
        return explain(parts.gateway.dispatcher.policy, parts.room, context, replicas, parts.gateway.clock.now())

    def _pool(self, pool: Pool) -> PoolStatus:
        return PoolStatus(
            name=pool.name,
            model=pool.model,
            aliases=list(pool.names),
            engine=pool.engine,
            roles=list(pool.roles),
            price_per_hour=pool.price_per_hour,
            replicas=[self._replica(replica) for replica in pool.replicas],
        )

    def _replica(self, replica: Replica) -> ReplicaStatus:
        status = ReplicaStatus(
            id=replica.id,
            url=replica.url,
            state=replica.state,
            reason=replica.reason,
            in_flight=replica.in_flight,
            in_flight_by_class=dict(replica.in_flight_by_class),
        )
        signals = replica.signals
        if signals is not None:
            for name in ("running", "waiting", "kv_usage", "queued_prompt_tokens", "slots_allocated", "slots_empty"):
                setattr(status, name, getattr(signals, name))
            status.signals_age_s = round(self._assembly.gateway.clock.now() - signals.taken_s, 3)
            known = self._assembly.models.of(replica)
            status.step_s = known.steps.decode_step_s(max(1, replica.in_flight))
        return status
