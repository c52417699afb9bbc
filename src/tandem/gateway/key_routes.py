"""`/tandem/keys`: keys made, listed, changed and revoked by an admin. A key is shown once, where it is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from tandem.core.errors import InvalidRequest
from tandem.core.types import ServiceClass
from tandem.gateway.keys import StoredKeys
from tandem.gateway.spending import Spending
from tandem.gateway.store.database import Database
from tandem.gateway.store.http import Authenticate, json_response, path_parameter, require_admin
from tandem.gateway.store.key_rows import KeyRecord, KeyRules, change_rules, create_key, find_key, list_keys, revoke_key
from tandem.gateway.store.wall import WallClock
from tandem.protocol.json_errors import invalid_json

Name = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[^\x00-\x1f\x7f]*$")]
Count = Annotated[int, Meta(ge=1, le=(1 << 53))]


class Rules(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key's rules on the wire; what they mean is said at `KeyConfig`."""

    tenant: Name = "default"
    service_class: ServiceClass | None = None
    models: list[str] | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    budget_micros: Count | None = None
    max_output_tokens: Count | None = None
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    is_admin: bool = False


class NewKey(Rules, kw_only=True, forbid_unknown_fields=True):
    """`POST /tandem/keys`."""

    name: Name
    expires_at: Count | None = None


class Key(Rules, kw_only=True):
    """A key without the key. Times in Unix seconds."""

    id: str
    name: str
    hint: str
    """Its last characters."""
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    spent_micros: int = 0
    """This month."""


class MadeKey(Key, kw_only=True):
    """The answer to `POST /tandem/keys`."""

    key: str
    """Shown this once. Only its hash is kept."""


class KeyList(msgspec.Struct, kw_only=True):
    data: list[Key]
    object: str = "list"


@dataclass(frozen=True, slots=True)
class KeyService:
    """What the handlers need."""

    database: Database
    keys: StoredKeys
    spending: Spending
    wall: WallClock
    authenticate: Authenticate

    async def create(self, request: web.Request) -> web.Response:
        self._admin(request)
        asked = _decode(await request.read(), NewKey)
        if asked.expires_at is not None and asked.expires_at <= self.wall.now():
            raise InvalidRequest("expires_at has passed; it must be Unix seconds in the future.", param="expires_at")
        make = partial(create_key, name=asked.name, rules=_rules(asked), now_s=self.wall.now())
        token, record = await self.database.write(partial(make, expires_at=asked.expires_at))
        await self.keys.refresh()
        return json_response(MadeKey(**self._fields(record), key=token), status=201)

    async def list_all(self, request: web.Request) -> web.Response:
        self._admin(request)
        configured = [record for record in self.keys.records() if record.is_configured]
        stored = await self.database.read(list_keys)
        return json_response(KeyList(data=[Key(**self._fields(record)) for record in (*configured, *stored)]))

    async def retrieve(self, request: web.Request) -> web.Response:
        self._admin(request)
        return self._answer(await self.database.read(partial(find_key, key_id=path_parameter(request, "key_id"))))

    async def change(self, request: web.Request) -> web.Response:
        """Fields that are given replace the old ones; null takes a rule away."""
        self._admin(request)
        key_id, body = path_parameter(request, "key_id"), await request.read()
        old = await self.database.read(partial(find_key, key_id=key_id))
        given = _decode(body, dict[str, msgspec.Raw])
        fields: dict[str, Any] = msgspec.to_builtins(_wire(old.rules))
        merged = msgspec.json.encode(fields | given)
        changed = await self.database.write(partial(change_rules, key_id=key_id, rules=_rules(_decode(merged, Rules))))
        await self.keys.refresh()
        return self._answer(changed)

    async def revoke(self, request: web.Request) -> web.Response:
        self._admin(request)
        work = partial(revoke_key, key_id=path_parameter(request, "key_id"), now_s=self.wall.now())
        revoked = await self.database.write(work)
        await self.keys.refresh()
        return self._answer(revoked)

    def _admin(self, request: web.Request) -> None:
        require_admin(self.authenticate(request))

    def _answer(self, record: KeyRecord) -> web.Response:
        return json_response(Key(**self._fields(record)))

    def _fields(self, record: KeyRecord) -> dict[str, Any]:
        return msgspec.structs.asdict(_wire(record.rules)) | {
            "id": record.id, "name": record.name, "hint": record.hint, "created_at": record.created_at,
            "expires_at": record.expires_at, "revoked_at": record.revoked_at,
            "spent_micros": self.spending.micros(record.id),
        }  # fmt: skip


def key_routes(
    database: Database, keys: StoredKeys, spending: Spending, authenticate: Authenticate, wall: WallClock | None = None
) -> list[web.RouteDef]:
    """To be mounted on an application whose middleware shapes `TandemError`s."""
    service = KeyService(database, keys, spending, wall or WallClock(), authenticate)
    return [
        web.post("/tandem/keys", service.create),
        web.get("/tandem/keys", service.list_all),
        web.get("/tandem/keys/{key_id}", service.retrieve),
        web.patch("/tandem/keys/{key_id}", service.change),
        web.delete("/tandem/keys/{key_id}", service.revoke),
    ]


def _rules(given: Rules) -> KeyRules:
    fields = {name: getattr(given, name) for name in KeyRules.__dataclass_fields__}
    return KeyRules(**fields | {"models": None if given.models is None else tuple(given.models)})


def _wire(rules: KeyRules) -> Rules:
    fields = {name: getattr(rules, name) for name in KeyRules.__dataclass_fields__}
    return Rules(**fields | {"models": None if rules.models is None else list(rules.models)})


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid_json(error, body) from error
