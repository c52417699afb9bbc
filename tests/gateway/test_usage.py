"""/tandem/usage and its exports: grouping, cost per million tokens, tenants apart, rows streamed page by page."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from tandem.config.gateway_store import StoreConfig
from tandem.gateway import usage
from tandem.gateway.store.key_rows import KeyRules
from tandem.gateway.store.ledger_rows import insert_rows
from tests.gateway.rows import ledger_row
from tests.gateway.served import Served, serving, token_of

ADMIN = KeyRules(tenant="ops", is_admin=True)


@pytest.fixture
async def served(address: str, store_config: StoreConfig) -> AsyncIterator[Served]:
    async with serving(address, store_config, rules=ADMIN) as running:
        yield running


async def put(served: Served, *rows: Any) -> None:
    await served.store.database.write(partial(insert_rows, rows=rows))


async def data(served: Served, query: str, **headers: str) -> list[dict[str, Any]]:
    async with served.http.get(f"/tandem/usage?{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        body = await response.json()
    return list(body["data"])


async def test_cost_per_million_tokens_by_pool(served: Served) -> None:
    await put(
        served,
        ledger_row("a", pool="paged", prompt_tokens=600, output_tokens=400, cost_micros=2500, engine_s=1.5),
        ledger_row("b", pool="paged", prompt_tokens=600, output_tokens=400, cost_micros=3500, is_estimated=True),
        ledger_row("c", pool="compiled", prompt_tokens=1000, output_tokens=1000, cost_micros=1000),
        ledger_row("d", pool="none", prompt_tokens=0, cached_tokens=0, output_tokens=0, cost_micros=0),
    )
    compiled, none, paged = await data(served, "group_by=pool")
    assert (compiled["pool"], compiled["cost_per_million_tokens"]) == ("compiled", 0.5)
    assert compiled["cost_per_million_output_tokens"] == 1.0
    assert (none["requests"], none["cost_per_million_tokens"]) == (1, None)
    assert (paged["requests"], paged["estimated_requests"], paged["cost_micros"]) == (2, 1, 6000)
    assert (paged["prompt_tokens"], paged["output_tokens"], paged["engine_s"]) == (1200, 800, 2.25)
    assert paged["cost_per_million_tokens"] == 3.0
    assert paged["currency"] == "EUR"


async def test_every_group_alone_and_together(served: Served) -> None:
    day = partial(datetime, tzinfo=UTC)
    await put(
        served,
        ledger_row("a", time=day(2026, 11, 30, 23, 59, 59, 999999), key_id="k1", model="x"),
        ledger_row("b", time=day(2026, 12, 1), key_id="k2", model="x", service_class="batch", status="aborted"),
        ledger_row("c", time=day(2026, 12, 1, 12), key_id="k1", model="y", currency="USD"),
    )
    for name, values in {
        "key": {"k1", "k2"}, "model": {"x", "y"}, "class": {"interactive", "batch"}, "status": {"ok", "aborted"},
        "day": {"2026-11-30", "2026-12-01"}, "pool": {"p"}, "replica": {"p-1"}, "tenant": {"t"},
    }.items():  # fmt: skip
        assert {item[name] for item in await data(served, f"group_by={name}")} == values
    items = await data(served, "group_by=day,key")
    assert [(item["day"], item["key"], item["requests"]) for item in items] == [
        ("2026-11-30", "k1", 1),
        ("2026-12-01", "k1", 1),
        ("2026-12-01", "k2", 1),
    ]
    assert [item["currency"] for item in await data(served, "group_by=")] == ["EUR", "USD"]
    assert [i["requests"] for i in await data(served, "group_by=pool&from=2026-12-01&to=2026-12-01T12:00:00Z")] == [1]
    assert [i["requests"] for i in await data(served, "group_by=tenant&key=k1&tenant=t&from=1700000000")] == [1, 1]
    assert await data(served, "tenant=nobody") == []


async def test_sums_of_many_rows_are_exact(served: Served) -> None:
    """Case ld-03."""
    await put(served, *(ledger_row(f"r{number}", cost_micros=62) for number in range(5000)))
    assert [item["cost_micros"] for item in await data(served, "group_by=pool")] == [310_000]


async def test_other_keys_see_their_own_tenant_only(served: Served) -> None:
    await put(served, ledger_row("a", tenant="one"), ledger_row("b", tenant="two"))
    token = await token_of(served, KeyRules(tenant="one"))
    auth = {"Authorization": f"Bearer {token}"}
    assert [item["tenant"] for item in await data(served, "group_by=tenant&tenant=two", **auth)] == ["one"]
    async with served.http.get("/tandem/usage/rows?tenant=two", headers=auth) as response:
        rows = list(csv.DictReader(io.StringIO(await response.text())))
    assert [row["request_id"] for row in rows] == ["a"]
    async with served.http.get("/tandem/usage", headers={"Authorization": "Bearer no"}) as response:
        assert response.status == 401


async def test_rows_are_exported_page_by_page(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "PAGE_ROWS", 7)
    same = datetime(2026, 12, 1, tzinfo=UTC)
    await put(served, *(ledger_row(f"r{number:02}", time=same, model='=a,"b"\n') for number in range(30)))
    async with served.http.get("/tandem/usage/rows") as response:
        assert response.content_type == "text/csv"
        rows = list(csv.DictReader(io.StringIO(await response.text(), newline="")))
    assert [row["request_id"] for row in rows] == [f"r{number:02}" for number in range(30)]
    assert rows[0]["time"] == "2026-12-01T00:00:00+00:00"
    assert rows[0]["model"] == '\'=a,"b"\n'  # No formula in a spreadsheet.
    assert (rows[0]["cost_micros"], rows[0]["status"]) == ("30", "ok")


async def test_the_report_as_csv(served: Served) -> None:
    await put(served, ledger_row("a"), ledger_row("b", prompt_tokens=0, cached_tokens=0, output_tokens=0, pool="q"))
    async with served.http.get("/tandem/usage?group_by=pool,day&format=csv") as response:
        rows = list(csv.DictReader(io.StringIO(await response.text())))
    assert [(row["pool"], row["day"], row["requests"]) for row in rows] == [
        ("p", "2026-12-01", "1"),
        ("q", "2026-12-01", "1"),
    ]
    assert [row["cost_per_million_tokens"] for row in rows] == ["2.0", ""]


@pytest.mark.parametrize("query", ["group_by=color", "from=yesterday", "to=99999999999999999", "format=xml", "key=%00"])
async def test_what_cannot_be_asked_is_said(served: Served, query: str) -> None:
    async with served.http.get(f"/tandem/usage?{query}") as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == query.split("=")[0]
