"""/tandem/keys: made and shown once, listed without the key, changed, revoked; for admins only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tandem.config.gateway_store import StoreConfig
from tandem.core.errors import Unauthorized
from tandem.gateway.store.key_rows import KeyRules
from tests.gateway.rows import ledger_row
from tests.gateway.served import Served, serving, token_of


@pytest.fixture
async def served(address: str, store_config: StoreConfig) -> AsyncIterator[Served]:
    async with serving(address, store_config, rules=KeyRules(is_admin=True)) as running:
        yield running


async def call(served: Served, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with served.http.request(method, path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_a_key_is_made_shown_once_and_works_at_once(served: Served) -> None:
    asked = {"name": "app", "tenant": "acme", "models": ["m"], "tokens_per_minute": 100, "service_class": "batch"}
    status, made = await call(served, "POST", "/tandem/keys", asked)
    assert status == 201
    caller = served.store.keys.caller(made["key"])
    assert (caller.tenant, caller.key_id, caller.allowed_models) == ("acme", made["id"], frozenset({"m"}))
    _, listed = await call(served, "GET", "/tandem/keys")
    assert {key["name"] for key in listed["data"]} == {"n", "app"}
    assert made["key"] not in str(listed)
    _, found = await call(served, "GET", f"/tandem/keys/{made['id']}")
    assert "key" not in found
    assert (found["hint"], found["tokens_per_minute"]) == (made["key"][-4:], 100)


async def test_rules_are_changed_one_by_one(served: Served) -> None:
    _, made = await call(served, "POST", "/tandem/keys", {"name": "app", "tokens_per_minute": 100, "weight": 2.0})
    path = f"/tandem/keys/{made['id']}"
    status, changed = await call(served, "PATCH", path, {"tokens_per_minute": None, "budget_micros": 5})
    assert status == 200
    assert (changed["tokens_per_minute"], changed["budget_micros"], changed["weight"]) == (None, 5, 2.0)
    rules = served.store.keys.rules(made["id"])
    assert rules is not None
    assert (rules.tokens_per_minute, rules.budget_micros) == (None, 5)


async def test_a_revoked_key_is_refused_at_once(served: Served) -> None:
    _, made = await call(served, "POST", "/tandem/keys", {"name": "app"})
    served.store.keys.caller(made["key"])
    status, revoked = await call(served, "DELETE", f"/tandem/keys/{made['id']}")
    assert (status, revoked["revoked_at"] is not None) == (200, True)
    with pytest.raises(Unauthorized):
        served.store.keys.caller(made["key"])


async def test_spending_is_told(served: Served) -> None:
    _, made = await call(served, "POST", "/tandem/keys", {"name": "app"})
    served.store.ledger.record(ledger_row("r", key_id=made["id"], cost_micros=77, time=datetime.now(UTC)))
    _, found = await call(served, "GET", f"/tandem/keys/{made['id']}")
    assert found["spent_micros"] == 77


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"name": "a", "tokens_per_minute": 0}, "tokens_per_minute"),
        ({"name": "a", "service_class": "slow"}, "service_class"),
        ({"name": "a", "expires_at": 5}, "expires_at"),
        ({"name": "a", "tokens_per_minut": 5}, None),
    ],
)
async def test_bad_rules_are_refused(served: Served, body: Any, param: str | None) -> None:
    status, answer = await call(served, "POST", "/tandem/keys", body)
    assert status == 400
    if param is not None:
        assert answer["error"]["param"] == param


async def test_only_admins_come_in(served: Served) -> None:
    """Case sec-01, for these routes."""
    token = await token_of(served, KeyRules(tenant="t"))
    _, made = await call(served, "POST", "/tandem/keys", {"name": "app"})
    one = f"/tandem/keys/{made['id']}"
    for method, path in (
        ("POST", "/tandem/keys"),
        ("GET", "/tandem/keys"),
        ("GET", one),
        ("PATCH", one),
        ("DELETE", one),
    ):
        for auth, expected in ((f"Bearer {token}", 403), ("Bearer wrong", 401), ("", 401)):
            status, _ = await call(served, method, path, {"name": "x"}, Authorization=auth)
            assert status == expected, (method, path, auth)
    assert served.store.keys.caller(made["key"]).key_id == made["id"]
    status, _ = await call(served, "GET", "/tandem/keys/key-none")
    assert status == 404
