"""What the gateway knows about a request while it passes: who asks, for what, by when, and how big it seems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tandem.core.types import ServiceClass

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What the request's class was promised. Seconds; None: no such promise."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    deadline_s: float | None = None
    """From arrival to the last token."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent it: a key's owner, or "anonymous" where no keys are configured."""

    tenant: str = "anonymous"
    key_id: str = "-"
    forced_class: ServiceClass | None = None
    """The key's own rule; beats what the request says."""
    allowed_models: frozenset[str] | None = None
    max_output_tokens: int | None = None
    cache_salt: str | None = None
    """HMAC of the tenant: tenants never share cached prefixes. None: they may."""
    weight: float = 1.0
    """Of its share when several keys wait."""
    is_admin: bool = False
    """May use the routes under /tandem."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request, from its arrival to its ledger row. Filled by proxy.py; policies only read it."""

    request_id: str
    """Ours, unique in the deployment."""
    client_request_id: str | None
    endpoint: Endpoint
    caller: Caller
    service_class: ServiceClass
    goal: Goal
    model: str
    """The alias the client named."""
    body: bytes
    """As received."""
    is_stream: bool
    wants_usage: bool
    """The client itself asked for the usage chunk."""
    num_answers: int
    """n, times the prompts of a list."""
    max_output_tokens: int | None
    """Of one answer, after all caps; None: the model's end."""
    arrived_s: float
    """On the gateway's monotonic clock."""
    prompt_bytes: int
    prompt_tokens: int
    """Estimated from bytes by the model's ratio, which usage corrects."""
    output_tokens: int
    """Expected, for all answers: learned by key and model, at most max_output_tokens."""
    session: str | None = None
    """`prompt_cache_key`, `user`, or a session header: requests of one session like one replica."""
    prefix_hashes: tuple[bytes, ...] = ()
    """Of the prompt's bytes, a chain: entry i covers everything up to chunk i. With the tenant's salt in it."""
    excluded: set[str] = field(default_factory=set)
    """Ids of replicas that already failed this request."""
    fields: dict[str, msgspec.Raw] = field(default_factory=dict)
    """The body's top level, unparsed: what adapters start from."""
    tier: str | None = None
    """`service_tier` as the client wrote it."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens
