"""From the pools that are to the pools that shall be, without a dropped request."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.pools import Pools


def reload(pools: Pools, wanted: Iterable[Pool], *, drain_timeout_s: float = 600.0) -> None:
    """What is the same runs on, with its new settings; what is gone drains, and is watched until it has. Replicas that
    a provider started stay as long as their pool does. `wanted` are new objects, which may become the pools' own."""
    new = {pool.name: pool for pool in wanted}
    for pool in list(pools.pools):
        same = new.get(pool.name)
        if same is None or not pool.is_same_as(same):
            pools.retire_pool(pool, drain_timeout_s)
        else:
            _update(pools, pool, new.pop(pool.name), drain_timeout_s)
    for pool in new.values():
        pools.add_pool(pool)
    pools.settings_changed()


def _update(pools: Pools, pool: Pool, new: Pool, drain_timeout_s: float) -> None:
    pool.take_settings(new)
    urls = {replica.url for replica in new.replicas}
    for replica in list(pool.replicas):
        is_endpoint = replica.id == pool.make_replica(replica.url).id  # a provider gives ids of its own
        if is_endpoint and replica.url not in urls:
            pools.retire(replica, drain_timeout_s)
    here = {replica.url for replica in pool.replicas if replica.state != "draining"}
    for replica in new.replicas:
        if replica.url not in here:
            pools.put_replica(pool.name, replica.url, replica.id)
