"""API keys: only hashes are kept, rules come with them, changes are seen elsewhere, and the door stays shut."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from tandem.config.gateway_store import KeyConfig, StoreConfig
from tandem.core.errors import ConfigError, NotFound, Unauthorized, Unavailable
from tandem.gateway.keys import ANONYMOUS, StoredKeys, salt_of
from tandem.gateway.store.database import Database
from tandem.gateway.store.key_rows import KeyRules, change_rules, create_key, list_keys, revoke_key
from tandem.gateway.store.tables import api_keys
from tandem.gateway.store.wall import WallClock
from tests.gateway.rows import until


class Now(WallClock):
    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.now_s = now_s

    def now(self) -> float:
        return self.now_s


async def made(database: Database, rules: KeyRules | None = None, expires_at: int | None = None) -> tuple[str, str]:
    """(token, id)."""
    make = partial(create_key, name="n", rules=rules or KeyRules(), now_s=1000.0, expires_at=expires_at)
    token, record = await database.write(make)
    return token, record.id


async def test_without_any_key_everybody_is_anonymous(database: Database) -> None:
    keys = StoredKeys(database)
    await keys.refresh()
    assert keys.caller(None) is ANONYMOUS
    assert keys.caller("whatever a client sends by default") is ANONYMOUS
    assert keys.caller_of("-") is ANONYMOUS


async def test_a_key_brings_its_rules(database: Database) -> None:
    rules = KeyRules(
        tenant="acme", service_class="batch", models=("a", "b"), tokens_per_minute=7, max_output_tokens=9, weight=2.5
    )
    token, key_id = await made(database, rules)
    keys = StoredKeys(database)
    await keys.refresh()
    caller = keys.caller(token)
    assert (caller.tenant, caller.key_id, caller.forced_class) == ("acme", key_id, "batch")
    assert (caller.allowed_models, caller.max_output_tokens, caller.weight) == (frozenset("ab"), 9, 2.5)
    assert not caller.is_admin
    assert keys.rules(key_id) == rules
    assert keys.caller_of(key_id) == caller


async def test_only_a_hash_is_in_the_database(database: Database) -> None:
    token, _ = await made(database)

    def everything(connection: Connection) -> str:
        return str([tuple(row) for row in connection.execute(select(api_keys))])

    text = await database.read(everything)
    assert token not in text
    assert token.removeprefix("sk-tandem-")[:8] not in text
    assert token[-4:] in text
    assert len(token) > 50


@pytest.mark.parametrize("wrong", [None, "", "sk-tandem-no", "\udcff", "x" * 10_000])
async def test_a_wrong_key_is_refused_and_never_repeated(database: Database, wrong: str | None) -> None:
    """Case gw-08: neither the answer nor the log holds the key."""
    await made(database)
    keys = StoredKeys(database)
    await keys.refresh()
    with pytest.raises(Unauthorized) as refusal:
        keys.caller(wrong)
    assert not wrong or wrong not in refusal.value.message


async def test_a_revoked_and_an_expired_key_are_refused(database: Database) -> None:
    revoked, revoked_id = await made(database)
    expiring, _ = await made(database, expires_at=2000)
    wall = Now(1500.0)
    keys = StoredKeys(database, wall=wall)
    await keys.refresh()
    keys.caller(revoked)
    keys.caller(expiring)
    await database.write(partial(revoke_key, key_id=revoked_id, now_s=1600.0))
    await keys.refresh()
    wall.now_s = 2000.0
    for token in (revoked, expiring):
        with pytest.raises(Unauthorized):
            keys.caller(token)
    with pytest.raises(Unauthorized):
        keys.caller_of(revoked_id)


async def test_revoking_the_last_key_does_not_open_the_door(database: Database) -> None:
    _, key_id = await made(database)
    await database.write(partial(revoke_key, key_id=key_id, now_s=1.0))
    keys = StoredKeys(database)
    await keys.refresh()
    with pytest.raises(Unauthorized):
        keys.caller(None)


async def test_revoking_twice_keeps_the_first_time_and_an_unknown_key_is_not_found(database: Database) -> None:
    _, key_id = await made(database)
    await database.write(partial(revoke_key, key_id=key_id, now_s=5.0))
    assert (await database.write(partial(revoke_key, key_id=key_id, now_s=9.0))).revoked_at == 5
    with pytest.raises(NotFound):
        await database.write(partial(revoke_key, key_id="key-none", now_s=9.0))


async def test_another_gateway_sees_a_change_by_itself(address: str, database: Database) -> None:
    keys = StoredKeys(database)
    await keys.start()
    elsewhere = Database(address)
    token, key_id = await made(elsewhere)
    await until(lambda: keys.rules(key_id) is not None)
    assert keys.caller(token).max_output_tokens is None
    await elsewhere.write(partial(change_rules, key_id=key_id, rules=KeyRules(max_output_tokens=3)))
    await until(lambda: keys.caller(token).max_output_tokens == 3)
    await keys.close()
    await elsewhere.close()


async def test_all_gateways_make_the_same_salt_and_each_tenant_has_its_own(address: str, database: Database) -> None:
    token, _ = await made(database, KeyRules(tenant="a"))
    other, _ = await made(database, KeyRules(tenant="b"))
    second = Database(address)
    gateways = [StoredKeys(database), StoredKeys(second)]
    for keys in gateways:
        await keys.refresh()
    salts = [keys.caller(token).cache_salt for keys in gateways]
    assert salts[0] == salts[1]
    assert salts[0] != gateways[0].caller(other).cache_salt
    assert salt_of("a", "one") != salt_of("a", "two")
    await second.close()


async def test_configured_keys_work_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "a-configured-key-0001")
    away = Database("postgresql://nobody@/none?host=/nonexistent")
    configured = (KeyConfig(name="ops", key="env:THE_KEY", tenant="ops", admin=True, budget_micros=5),)
    keys = StoredKeys(away, configured)
    await keys.start()
    caller = keys.caller("a-configured-key-0001")
    assert (caller.key_id, caller.is_admin) == ("ops", True)
    assert caller.cache_salt
    with pytest.raises(Unauthorized):
        keys.caller(None)
    await keys.close()
    await away.close()


async def test_a_gateway_that_starts_without_its_database_knows_the_keys_of_last_time(
    database: Database, tmp_path: Path
) -> None:
    token, _ = await made(database, KeyRules(tenant="a"))
    cache = tmp_path / "kept" / "keys.json"
    before = StoredKeys(database, cache=cache)
    await before.start()
    salt = before.caller(token).cache_salt
    await before.close()
    assert token not in cache.read_text()
    assert cache.stat().st_mode & 0o077 == 0
    away = Database("postgresql://nobody@/none?host=/nonexistent", StoreConfig(retry_s=60))
    after = StoredKeys(away, cache=cache)
    await after.start()
    assert after.caller(token).cache_salt == salt
    with pytest.raises(Unauthorized):
        after.caller(None)
    await after.close()
    await away.close()


async def test_while_nothing_is_known_nobody_is_let_in_as_anonymous() -> None:
    away = Database("postgresql://nobody@/none?host=/nonexistent")
    keys = StoredKeys(away)
    await keys.start()
    with pytest.raises(Unavailable):
        keys.caller(None)
    with pytest.raises(Unavailable):
        keys.caller("sk-tandem-x")
    await keys.close()
    await away.close()


def test_a_key_in_the_configuration_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env:NAME or file:PATH") as refusal:
        KeyConfig(name="ops", key="sk-very-secret")
    assert "sk-very-secret" not in str(refusal.value)


async def test_bad_configured_keys_are_refused_and_the_old_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOD", "a-configured-key-0001")
    monkeypatch.setenv("SHORT", "short")
    away = Database("postgresql://nobody@/none?host=/nonexistent")
    keys = StoredKeys(away, (KeyConfig(name="ops", key="env:GOOD"),))
    for bad in (
        (KeyConfig(name="ops", key="env:SHORT"),),
        (KeyConfig(name="ops", key="env:NOT_SET"),),
        (KeyConfig(name="a", key="env:GOOD"), KeyConfig(name="b", key="env:GOOD")),
    ):
        with pytest.raises(ConfigError):
            keys.configure(bad)
    assert keys.caller("a-configured-key-0001").key_id == "ops"
    await away.close()


async def test_keys_are_listed_with_revoked_ones(database: Database) -> None:
    _, first = await made(database)
    _, second = await made(database)
    await database.write(partial(revoke_key, key_id=first, now_s=5.0))
    listed = {record.id: record.revoked_at for record in await database.read(list_keys)}
    assert listed == {first: 5, second: None}
