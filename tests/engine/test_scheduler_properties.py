"""Random arrivals, lengths, answers, aborts and pool sizes: every request gets exactly the tokens it gets alone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.sampling_params import SamplingParams
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.engine.messages import NewRequest
from tests.engine.fake_runner import FULL, Harness, expected_tokens

GROUPS = {
    "full": FULL,
    "windowed": (LayerGroup((0,), None), LayerGroup((1,), 6), LayerGroup((2,), 11)),
    "only windows": (LayerGroup((0, 1), 5),),
}


@dataclass
class Job:
    arrival: int
    prompt: list[int]
    max_tokens: int
    n: int
    priority: int
    abort_after: int | None
    salt: str | None


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    shared = draw(st.sampled_from([[], [1, 2, 3, 4, 5, 6, 7, 8, 9], [7] * 14]))
    own = draw(st.lists(st.integers(0, 3), min_size=1, max_size=24))
    return Job(
        arrival=draw(st.integers(0, 30)),
        prompt=shared + own,
        max_tokens=draw(st.integers(0, 20)),
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        priority=draw(st.sampled_from([0, 0, 0, 5])),
        abort_after=draw(st.none() | st.integers(0, 25)),
        salt=draw(st.sampled_from([None, None, "a"])),
    )


@given(
    work=st.lists(jobs(), min_size=1, max_size=12),
    num_blocks=st.integers(50, 90),
    block_size=st.sampled_from([1, 2, 4, 8]),
    budget=st.sampled_from([1, 5, 16, 64]),
    seats=st.integers(3, 8),
    groups=st.sampled_from(sorted(GROUPS)),
    caching=st.booleans(),
)
@settings(max_examples=250, deadline=None, derandomize=True)
def test_every_request_gets_its_own_tokens(
    work: list[Job], num_blocks: int, block_size: int, budget: int, seats: int, groups: str, caching: bool
) -> None:
    # Small pools are the point: just enough for the longest request alone.
    chosen = GROUPS[groups]
    longest = 14 + 24 + 20
    if block_size == 1 or len(chosen) > 1:
        num_blocks += longest * len(chosen) // block_size
    harness = Harness(
        num_blocks=num_blocks // (2 if block_size > 2 else 1),
        block_size=block_size,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        max_model_len=longest,
        groups=chosen,
        prefix_caching=caching,
    )
    aborted = _drive(harness, work)
    for number, job in enumerate(work):
        for answer in range(job.n):
            key = (str(number), answer)
            wanted = expected_tokens(job.prompt, job.max_tokens, answer)
            got = harness.tokens.get(key, [])
            if number in aborted:
                assert got == wanted[: len(got)]
            else:
                assert got == wanted
                assert harness.reasons[key] == "length"
    assert harness.kv.pool.num_held == 0
    counters = harness.scheduler.counters
    assert 0 <= counters.prefix_hits <= counters.prefix_queries


def _drive(harness: Harness, work: list[Job]) -> set[int]:
    aborted: set[int] = set()
    for now in range(10_000):
        for number, job in enumerate(work):
            if job.arrival == now:
                harness.add(
                    NewRequest(
                        request_id=str(number),
                        prompt_token_ids=job.prompt,
                        sampling=SamplingParams(max_tokens=job.max_tokens, n=job.n, temperature=0),
                        priority=job.priority,
                        cache_salt=job.salt,
                        arrival_s=float(now),
                    )
                )
            if job.abort_after is not None and job.arrival + job.abort_after == now:
                if any(harness.reasons.get((str(number), a)) is None for a in range(job.n)):
                    aborted.add(number)
                harness.core.abort(str(number))
        harness.step()
        if now > 60 and not harness.core.has_work:
            return aborted
    raise AssertionError("somebody starves")
