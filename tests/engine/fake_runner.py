"""A runner without a network: its "KV" remembers which token was written to which slot.

Before it answers it reads every slot that attention would read, and fails if one holds anything but the token that
belongs there. So a block given to two requests, a copy forgotten, or a stale prefix hit shows at once, as a wrong
token rather than as slightly different logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from tandem.core.clock import ManualClock
from tandem.core.request import Request
from tandem.engine.core import EngineCore
from tandem.engine.kvcache.block_pool import NULL_BLOCK
from tandem.engine.kvcache.events import CacheEventLog
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.engine.kvcache.manager import KVCacheManager
from tandem.engine.messages import NewRequest
from tandem.engine.models.spec import ModelSpec
from tandem.engine.runner.base import StepResult
from tandem.engine.scheduler import Scheduler, StepPlan
from tandem.engine.stats import StatsKeeper

VOCAB = 997
TINY = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=8,
    intermediate_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=VOCAB,
    max_position=4096,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
)

NextToken = Callable[[Sequence[int], int], int]


def hashed_token(tokens: Sequence[int], answer: int) -> int:
    """The "model": a token that depends on every token before it, and on which of the n answers asks."""
    digest = hashlib.blake2b(repr((list(tokens), answer)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % VOCAB


class MemoryRunner:
    """`windows`: by layer group, as in the manager. `clock` moves by one second a step."""

    name = "fake"

    def __init__(
        self, kv: KVCacheManager, clock: ManualClock | None = None, next_token: NextToken = hashed_token
    ) -> None:
        self._kv = kv
        self._clock = clock
        self._next_token = next_token
        self._memory: dict[tuple[int, int], int] = {}
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if self._clock:
            self._clock.advance(1.0)
        self._copy(plan)
        self._write(plan)
        tokens: list[int] = []
        for s in plan.scheduled:
            self._read(s.request, s.start, s.num_tokens)
            first = s.request.index
            tokens += [self._next_token(s.request.token_ids, first + n) for n in range(s.num_samples)]
        return StepResult(tokens)

    def release(self, request: Request) -> None:
        pass

    def _copy(self, plan: StepPlan) -> None:
        for copy in plan.block_copies:
            for offset in range(self._kv.block_size):
                if (copy.source, offset) in self._memory:
                    self._memory[copy.target, offset] = self._memory[copy.source, offset]

    def _write(self, plan: StepPlan) -> None:
        written: set[tuple[int, int]] = set()
        for s in plan.scheduled:
            for position in range(s.start, s.start + s.num_tokens):
                index, offset = divmod(position, self._kv.block_size)
                for table in s.request.block_tables:
                    slot = (table[index], offset)
                    assert table[index] != NULL_BLOCK, "a token has no slot"
                    assert slot not in written, f"two writers of slot {slot} in one step"
                    written.add(slot)
                    self._memory[slot] = s.request.token_ids[position]

    def _read(self, request: Request, start: int, num_tokens: int) -> None:
        end = start + num_tokens
        for group, table in zip(self._kv.groups, request.block_tables, strict=True):
            first = 0 if group.window is None else max(0, start - group.window + 1)
            for position in range(first, end):
                index, offset = divmod(position, self._kv.block_size)
                found = self._memory.get((table[index], offset))
                assert found == request.token_ids[position], (
                    f"{request.request_id}: position {position} holds {found}, not {request.token_ids[position]}"
                )


FULL = (LayerGroup((0, 1), None),)


class Harness:
    """An engine core over a MemoryRunner, with what tests want to look at."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 128,
        groups: Sequence[LayerGroup] = FULL,
        prefix_caching: bool = True,
        eos: frozenset[int] = frozenset(),
        next_token: NextToken = hashed_token,
    ) -> None:
        self.clock = ManualClock()
        self.events = CacheEventLog(groups, block_size)
        self.kv = KVCacheManager(
            num_blocks, block_size, groups, enable_prefix_caching=prefix_caching, listener=self.events
        )
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
        )
        self.runner = MemoryRunner(self.kv, self.clock, next_token)
        self.core = EngineCore(
            self.scheduler,
            self.runner,
            self.clock,
            eos_token_ids=eos,
            watch_text=lambda new: None,
            stats=StatsKeeper(self.scheduler, TINY),
            cache_events=self.events,
        )
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], str] = {}
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs

    def add(self, new: NewRequest) -> None:
        self.core.add(new)

    def step(self) -> None:
        """One step, then every invariant that must hold between steps."""
        for output in self.core.step():
            key = (output.request_id, output.index)
            assert key not in self.reasons, f"{key} got tokens after its end"
            self.tokens.setdefault(key, []).extend(output.token_ids)
            if output.finish_reason:
                self.reasons[key] = output.finish_reason
        self.check()

    def check(self) -> None:
        pool = self.kv.pool
        pool.check_integrity()
        assert pool.num_free + pool.num_cached + pool.num_held == pool.num_blocks
        references: dict[int, int] = {}
        for request in self.scheduler.running:
            for table in request.block_tables:
                for block in table:
                    if block != NULL_BLOCK:
                        references[block] = references.get(block, 0) + 1
        assert all(pool.references(b) == n for b, n in references.items()), "references and tables disagree"  # type: ignore[arg-type]
        assert pool.num_held == len(references), "a block is held by no table"
        assert sum(r.num_seats for r in self.scheduler.running) <= self.max_num_seqs
        if self.runner.plans:
            assert self.runner.plans[-1].num_tokens <= self.max_num_batched_tokens

    def run(self, limit: int = 10_000) -> int:
        """Steps until nothing is left; the number of them."""
        for count in range(limit):
            if not self.core.has_work:
                return count
            self.step()
        raise AssertionError(f"work is left after {limit} steps: somebody starves")


def expected_tokens(prompt: Sequence[int], count: int, answer: int = 0) -> list[int]:
    """What `hashed_token` gives for a request that runs alone, from the definition."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(hashed_token(tokens, answer))
    return tokens[len(prompt) :]
