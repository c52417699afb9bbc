"""What each routing policy makes of public traces on a modelled fleet: goals met, waits, cost.

    python -m benchmarks.routing [--requests 4000] [--batch 0.3]

The fleet is a model (`tests/gateway/routing/fleet.py`), the policies are the gateway's own. Two paged replicas, one
compiled one that does the same work in 60 % of the time at the same price, and two slow ones at an eighth of the price
that can't meet the interactive goal. Cost is price x engine-busy time, per million tokens.

Azure's conversation trace is CC-BY 4.0 (Azure Public Dataset; Splitwise, ISCA 2024), Mooncake's Apache 2.0 (FAST '25).
"""

from __future__ import annotations

import argparse
import time

from tests.gateway.routing.fleet import Arrival, EngineKind, Fleet, make_context, make_replicas
from tests.gateway.routing.traces import DATA, azure_conversation, mooncake, with_batch

from tandem.gateway.context import Goal
from tandem.gateway.routing.facts import PoolFacts
from tandem.gateway.routing.policies import POLICIES, PolicyParts
from tandem.gateway.routing.replica_models import ReplicaModels
from tandem.perfmodel.priors import StepCost

GOAL = Goal(ttft_s=1.0, tpot_s=0.05)
FLEET = (
    EngineKind("paged", StepCost(12e-3, 60e-6, 80e-6, 2e-9), PoolFacts(2.0, has_priorities=True), count=2),
    EngineKind("compiled", StepCost(7e-3, 36e-6, 50e-6, 2e-9), PoolFacts(2.0, "compiled", has_priorities=True)),
    EngineKind("slow", StepCost(60e-3, 350e-6, 400e-6, 1e-8), PoolFacts(0.25, has_priorities=True), count=2),
)


def compare(title: str, arrivals: list[Arrival]) -> None:
    print(f"\n{title}: {len(arrivals)} requests in {arrivals[-1].time_s:.0f} s")
    print("  policy           interactive in goal   batch in goal   p99 TTFT s   cost / M tokens   requests by pool")
    for name in POLICIES:
        report = Fleet(FLEET, name, goal=GOAL).run(arrivals)
        pools = ", ".join(f"{pool} {count}" for pool, count in sorted(report.by_pool.items()))
        print(
            f"  {name:16} {report.attainment('interactive'):19.1%} {report.attainment('batch'):15.1%} "
            f"{report.p99_ttft_s():12.2f} {report.cost_per_million:17.4f}   {pools}"
        )


def cost_of_a_decision() -> None:
    replicas, parts = make_replicas(16), PolicyParts(models=ReplicaModels({"p": PoolFacts(price_per_hour=1.0)}))
    for number, replica in enumerate(replicas):
        replica.in_flight = number
        parts.index.add(replica.id, [f"{number}.{i}".encode() for i in range(64)], 8192)
    request = make_context(4096, goal=GOAL, hashes=tuple(f"3.{i}".encode() for i in range(64)), session="s")
    print("\nA decision among 16 replicas, 64 prefix chunks:")
    for name, make in POLICIES.items():
        policy, times = make(parts), []
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(100):
                policy.choose(request, replicas, 0.0)
            times.append((time.perf_counter() - started) / 100)
        print(f"  {name:16} {min(times) * 1e6:6.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--batch", type=float, default=0.3, help="share of the requests that is batch work")
    options = parser.parse_args()
    cost_of_a_decision()
    if not DATA.exists():
        raise SystemExit(f"The traces are not at {DATA}; nothing to compare the policies on.")
    for load in (1.0, 3.0, 5.0):
        trace = azure_conversation(options.requests, seconds_per_second=load)
        compare(f"Azure conversation, {load:g} times as fast", with_batch(trace, options.batch))
    for load in (1.0, 2.0):
        trace = mooncake(options.requests, seconds_per_second=load)
        compare(f"Mooncake conversation, prompts / 8, {load:g} times as fast", with_batch(trace, options.batch))


if __name__ == "__main__":
    main()
