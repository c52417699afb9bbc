"""Rates and budgets of keys: checked and reserved in one step when a request enters, settled when it ends.

A request reserves its estimated prompt and its longest answer, so that requests which come together can't pass a limit
together: what is reserved and what was used in the last minute never exceed it at the moment of admission. When it
ends, what it really used takes the reservation's place. Only the event loop's thread comes here, which makes it
atomic; over several gateways the limit is divided (shares.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from tandem.core.clock import Clock, SystemClock
from tandem.core.errors import InvalidRequest
from tandem.gateway.context import Caller
from tandem.gateway.spending import Spending
from tandem.gateway.store.errors import BudgetSpent, RateLimited
from tandem.gateway.store.key_rows import KeyRules
from tandem.gateway.windows import WINDOW_S, Window

Kind = Literal["requests", "tokens"]
MEMORY: Final = 5
"""Rounds for which unmet demand is remembered."""
_LEARNING: Final = 0.2
"""Weight of the newest request in what a token of a key costs."""


@dataclass(slots=True)
class Share:
    """What of a limit this gateway may grant."""

    limit: int
    cap: int
    """Now: the limit itself where this gateway is alone."""
    fair: int
    """What it should be by the demand at all gateways; `cap` falls to it, no lower than what is occupied."""
    refused: deque[int] = field(default_factory=lambda: deque([0], MEMORY))
    """Demand that wasn't met, newest last, by rounds of dividing: the others need a few to give something up."""


@dataclass(slots=True)
class _Account:
    """One key's."""

    windows: dict[Kind, Window] = field(default_factory=lambda: {"requests": Window(), "tokens": Window()})
    shares: dict[Kind, Share] = field(default_factory=dict)
    micros_per_token: float = 0.0


class StoredLimits:
    """`Limits`. Nothing here waits or reads a database."""

    def __init__(
        self,
        rules: Callable[[str], KeyRules | None],
        spending: Spending | None = None,
        clock: Clock | None = None,
        sync_s: float = 1.0,
    ) -> None:
        self._rules = rules
        self._spending = spending or Spending()
        self._clock = clock or SystemClock()
        self._sync_s = sync_s
        self._accounts: dict[str, _Account] = {}

    def take(self, caller: Caller, prompt_tokens: int, output_tokens: int, now_s: float) -> None:
        """Reserves. Raises `RateLimited` or `BudgetSpent` (both `Overloaded`), reserving nothing; `InvalidRequest` for
        a request that could never fit."""
        rules = self._rules(caller.key_id)
        if rules is None:
            return
        tokens = prompt_tokens + output_tokens
        account = self._account(caller.key_id)
        self._check_rate(account, "requests", 1, rules.requests_per_minute, now_s)
        self._check_rate(account, "tokens", tokens, rules.tokens_per_minute, now_s)
        self._check_budget(account, caller.key_id, tokens, rules.budget_micros)
        account.windows["requests"].use(1, now_s)
        account.windows["tokens"].outstanding += tokens

    def settle(self, caller: Caller, reserved_tokens: int, used_tokens: int, cost_micros: int) -> None:
        """Call it once for each `take` that passed, however the request ended."""
        if self._rules(caller.key_id) is None and caller.key_id not in self._accounts:
            return
        account = self._account(caller.key_id)
        window = account.windows["tokens"]
        window.outstanding = max(0, window.outstanding - reserved_tokens)
        window.use(used_tokens, self._clock.now())
        if used_tokens > 0:
            newest = cost_micros / used_tokens
            old = account.micros_per_token or newest
            account.micros_per_token = old + _LEARNING * (newest - old)

    def reserved_tokens(self, key_id: str) -> int:
        """Of requests that haven't ended."""
        return self._account(key_id).windows["tokens"].outstanding

    def used_tokens(self, key_id: str) -> int:
        """In the last minute."""
        window = self._account(key_id).windows["tokens"]
        return window.occupied(self._clock.now()) - window.outstanding

    def share(self, key_id: str, kind: Kind, limit: int) -> Share:
        """For shares.py, which changes it."""
        shares = self._account(key_id).shares
        found = shares.get(kind)
        if found is None:
            found = shares[kind] = Share(limit, limit, limit)
        elif found.limit != limit:
            # The rule has changed: the share changes with it at once.
            found.cap, found.fair = found.cap * limit // found.limit, limit
            found.limit = limit
        return found

    def occupied(self, key_id: str, kind: Kind, now_s: float) -> int:
        return self._account(key_id).windows[kind].occupied(now_s)

    def _account(self, key_id: str) -> _Account:
        account = self._accounts.get(key_id)
        if account is None:
            account = self._accounts[key_id] = _Account()
        return account

    def _check_rate(self, account: _Account, kind: Kind, amount: int, limit: int | None, now_s: float) -> None:
        if limit is None:
            return
        if amount > limit:
            raise InvalidRequest(
                f"The request may take {amount} {kind}, more than the key's {limit} a minute; "
                "shorten the prompt or lower max_tokens.",
                code="request_too_large",
            )
        window = account.windows[kind]
        share = account.shares.get(kind)
        cap = limit if share is None else min(limit, share.cap)
        if window.occupied(now_s) + amount <= cap:
            return
        if share is not None:
            share.refused[-1] += amount
        raise _limited(kind, limit, self._wait_s(window, amount, limit, now_s))

    def _wait_s(self, window: Window, amount: int, limit: int, now_s: float) -> float:
        if window.occupied(now_s) + amount <= limit:
            return 2 * self._sync_s  # The rest of the limit is at other gateways, which will give it up.
        return window.wait_s(amount, limit, now_s)

    def _check_budget(self, account: _Account, key_id: str, tokens: int, budget_micros: int | None) -> None:
        """What runs is reckoned at what a token of this key has cost lately; the first requests, at nothing."""
        if budget_micros is None:
            return
        spent = self._spending.micros(key_id)
        expected = (account.windows["tokens"].outstanding + tokens) * account.micros_per_token
        if spent + expected > budget_micros or spent >= budget_micros:
            raise BudgetSpent(
                f"The key's budget of {budget_micros / 1e6:g} for this month is used up, or would be by this request.",
                retry_after_s=self._spending.until_next_month_s(),
            )


def _limited(kind: Kind, limit: int, wait_s: float) -> RateLimited:
    return RateLimited(
        f"The key's limit of {limit} {kind} a minute is reached; try again in {wait_s:.0f} s.",
        retry_after_s=min(max(wait_s, 1.0), WINDOW_S + 1),
    )
