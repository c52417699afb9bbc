"""`/tandem/usage`: what was used and what it cost, by key, model, pool, class, day; and the ledger itself as CSV.

An admin key sees everything, any other key its own tenant. Cost per million tokens is the number to compare pools by.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web
from sqlalchemy import Row

from tandem.core.errors import InvalidRequest
from tandem.gateway.context import Caller
from tandem.gateway.store.database import Database
from tandem.gateway.store.http import Authenticate, choice, json_response, text_parameter
from tandem.gateway.store.ledger_rows import EPOCH, from_us, time_us
from tandem.gateway.store.tables import ledger
from tandem.gateway.store.usage_rows import GROUPS, SUMS, Filter, Position, rows_page, usage

PAGE_ROWS: Final = 1000
COLUMNS: Final = ("time", *(name for name in ledger.c.keys() if name != "time_us"))  # noqa: SIM118
"""Of the CSV export; named as `LedgerRow` names them."""


class UsageItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One group. Those it is grouped by have a value."""

    key: str | None = None
    tenant: str | None = None
    model: str | None = None
    pool: str | None = None
    replica: str | None = None
    class_: str | None = msgspec.field(default=None, name="class")
    status: str | None = None
    day: str | None = None
    """2026-12-31, UTC."""
    currency: str
    requests: int
    estimated_requests: int
    """Of the requests: those whose tokens or times the gateway had to estimate."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    engine_s: float
    kv_block_s: float
    cost_micros: int
    cost_per_million_tokens: float | None
    """In whole units of the currency, over prompt and output tokens; null where there were none."""
    cost_per_million_output_tokens: float | None


class UsageReport(msgspec.Struct, kw_only=True):
    """`GET /tandem/usage`."""

    data: list[UsageItem]
    object: str = "list"
    group_by: list[str]


@dataclass(frozen=True, slots=True)
class UsageService:
    """What the handlers need."""

    database: Database
    authenticate: Authenticate

    async def report(self, request: web.Request) -> web.Response:
        which = _filter(request, self.authenticate(request))
        groups = _groups(request)
        kind = choice(request, "format", "json", ("json", "csv"))
        rows = await self.database.read(partial(usage, groups=groups, which=which))
        items = [_item(row, groups) for row in rows]
        if kind == "csv":
            return _csv_response(items, groups)
        return json_response(UsageReport(data=items, group_by=groups))

    async def export(self, request: web.Request) -> web.StreamResponse:
        """Row by row, page by page: neither the gateway nor the client holds the whole."""
        which = _filter(request, self.authenticate(request))
        page = await self.database.read(partial(rows_page, which=which, after=None, limit=PAGE_ROWS))
        response = web.StreamResponse(headers=_csv_headers("ledger"))
        await response.prepare(request)
        await response.write(_csv([COLUMNS]))
        while page:
            await response.write(_csv(_values(row) for row in page))
            after = Position(page[-1].time_us, page[-1].request_id)
            page = await self.database.read(partial(rows_page, which=which, after=after, limit=PAGE_ROWS))
        await response.write_eof()
        return response


def usage_routes(database: Database, authenticate: Authenticate) -> list[web.RouteDef]:
    """To be mounted on an application whose middleware shapes `TandemError`s."""
    service = UsageService(database, authenticate)
    return [web.get("/tandem/usage", service.report), web.get("/tandem/usage/rows", service.export)]


def _filter(request: web.Request, caller: Caller) -> Filter:
    tenant = text_parameter(request, "tenant")
    return Filter(
        from_us=_time(request, "from"),
        to_us=_time(request, "to"),
        tenant=tenant if caller.is_admin else caller.tenant,
        key_id=text_parameter(request, "key"),
    )


def _groups(request: web.Request) -> list[str]:
    names = [name for name in request.query.get("group_by", "pool").split(",") if name]
    for name in names:
        if name not in GROUPS:
            raise InvalidRequest(
                f"group_by has {name!r:.40}; it may have {', '.join(GROUPS)}, separated by commas.", param="group_by"
            )
    return list(dict.fromkeys(names))


def _time(request: web.Request, name: str) -> int | None:
    """A day or a moment in ISO 8601, UTC unless it says otherwise; or Unix seconds."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        moment = EPOCH + timedelta(seconds=int(text)) if text.isdigit() else datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{name} is {text!r:.40}; it must be a date, such as 2026-12-31 or 2026-12-31T12:00:00Z, or Unix seconds.",
            param=name,
        ) from error
    return time_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _item(row: Row[Any], groups: list[str]) -> UsageItem:
    values: dict[str, Any] = {name: getattr(row, f"by_{name}") for name in groups}
    if "day" in values:
        values["day"] = (EPOCH + timedelta(days=values["day"])).date().isoformat()
    if "class" in values:
        values["class_"] = values.pop("class")
    sums = {name: float(getattr(row, name)) if name.endswith("_s") else int(getattr(row, name)) for name in SUMS}
    cost, output = sums["cost_micros"], sums["output_tokens"]
    return UsageItem(
        **values,
        **sums,  # type: ignore[arg-type]
        currency=row.currency,
        requests=row.num_requests,
        estimated_requests=int(row.num_estimated),
        cost_per_million_tokens=_ratio(cost, sums["prompt_tokens"] + output),
        cost_per_million_output_tokens=_ratio(cost, output),
    )


def _ratio(cost_micros: float, tokens: float) -> float | None:
    """Millionths a token are units a million tokens."""
    return cost_micros / tokens if tokens else None


def _values(row: Row[Any]) -> list[Any]:
    fields = row._asdict()
    fields["time"] = from_us(row.time_us).isoformat()
    return [fields[name] for name in COLUMNS]


def _csv_response(items: list[UsageItem], groups: list[str]) -> web.Response:
    columns = [*groups, *(field.encode_name for field in msgspec.structs.fields(UsageItem) if field.required)]
    rows = [[msgspec.to_builtins(item).get(name, "") for name in columns] for item in items]
    return web.Response(body=_csv([columns, *rows]), headers=_csv_headers("usage"))


def _csv_headers(name: str) -> dict[str, str]:
    return {"Content-Type": "text/csv; charset=utf-8", "Content-Disposition": f'attachment; filename="{name}.csv"'}


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([_harmless(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _harmless(value: Any) -> Any:
    """A name that a client chose must not be a formula in somebody's spreadsheet."""
    is_formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and value != "-"
    return f"'{value}" if is_formula else value
