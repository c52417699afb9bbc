"""How gateways on one database divide the keys' limits among themselves, in one transaction each.

The amounts written never add up to more than the limit, and a gateway grants no more than its own. So the limit holds
over all of them, although none asks another, or the database, on the way of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, select, text, update

from tandem.gateway.store.tables import gateways, limit_shares
from tandem.gateway.store.upsert import insert_new, put

_LOCK_ID: Final = 0x736861726573
"""Shares are divided by one gateway at a time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one gateway says of one limit."""

    key_id: str
    kind: str
    limit: int
    cap: int
    """What it grants at most until it hears otherwise; never more than its row says."""
    wanted: int


@dataclass(frozen=True, slots=True)
class Grant:
    amount: int
    """What it may grant from now on."""
    fair: int
    """What it should come down to, if that is less."""


def divide(connection: Connection, gateway: str, claims: Sequence[Claim], num_gateways: int) -> list[Grant]:
    """One grant for each claim, in their order. Gateways that haven't claimed yet are left an equal part."""
    _lock(connection)
    others = _others(connection, gateway, claims)
    grants = [_grant(claim, others.get((claim.key_id, claim.kind), []), num_gateways) for claim in claims]
    rows = [
        {"key_id": c.key_id, "kind": c.kind, "gateway": gateway, "amount": g.amount, "wanted": c.wanted}
        for c, g in zip(claims, grants, strict=True)
    ]
    put(connection, limit_shares, rows)
    return grants


def unmet(connection: Connection, gateway: str) -> set[tuple[str, str]]:
    """(key, kind) of limits of which some other gateway wants more than it has."""
    table = limit_shares.c
    query = select(table.key_id, table.kind).where(table.wanted > table.amount, table.gateway != gateway)
    return {(row.key_id, row.kind) for row in connection.execute(query)}


def beat(connection: Connection, gateway: str) -> dict[str, int]:
    """Says that this gateway lives. All gateways → their beats."""
    insert_new(connection, gateways, [{"id": gateway, "beats": 0}])
    connection.execute(update(gateways).where(gateways.c.id == gateway).values(beats=gateways.c.beats + 1))
    return {row.id: row.beats for row in connection.execute(select(gateways))}


def forget(connection: Connection, gateway: str, beats: int | None = None) -> None:
    """Takes a gateway's shares away; with `beats`, only if it hasn't beaten since."""
    _lock(connection)
    condition = gateways.c.id == gateway
    if beats is not None:
        condition &= gateways.c.beats == beats
    if connection.execute(delete(gateways).where(condition)).rowcount:
        connection.execute(delete(limit_shares).where(limit_shares.c.gateway == gateway))


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _LOCK_ID})


def _others(
    connection: Connection, gateway: str, claims: Sequence[Claim]
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(key, kind) → (amount, wanted) of each other gateway."""
    keys = sorted({claim.key_id for claim in claims})
    query = select(limit_shares).where(limit_shares.c.key_id.in_(keys), limit_shares.c.gateway != gateway)
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in connection.execute(query):
        found.setdefault((row.key_id, row.kind), []).append((row.amount, row.wanted))
    return found


def _grant(claim: Claim, others: list[tuple[int, int]], num_gateways: int) -> Grant:
    taken = sum(amount for amount, _ in others)
    num_silent = max(0, num_gateways - 1 - len(others))
    silent = [claim.limit // num_gateways] * num_silent
    fair = fair_share(claim.limit, claim.wanted, [wanted for _, wanted in others] + silent)
    return Grant(amount=max(0, min(max(claim.cap, fair), claim.limit - taken)), fair=fair)


def fair_share(limit: int, wanted: int, others: Sequence[int]) -> int:
    """What is wanted, and an equal part of what nobody wants; where too much is wanted, in proportion."""
    total = wanted + sum(others)
    if total <= limit:
        return wanted + (limit - total) // (1 + len(others)) if others else limit
    return (2 * limit * wanted + total) // (2 * total)
