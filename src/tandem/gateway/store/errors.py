"""What can go wrong with the store, beyond the tree in `core.errors`."""

from __future__ import annotations

from tandem.core.errors import InvalidRequest, Overloaded, TandemError, Unavailable


class DatabaseAway(Unavailable):
    """The database can't be reached, or answers too late. What was asked may have happened or not."""

    code = "database_unavailable"


class LeaseLost(TandemError):
    """Somebody else holds the lease now: what was about to be written must not be."""


class RateLimited(Overloaded):
    """The key's own limit is reached, whatever room there is."""

    code = "rate_limit_exceeded"


class BudgetSpent(RateLimited):
    """The key's money for this month is used up. OpenAI's code for it."""

    code = "insufficient_quota"


class Conflict(InvalidRequest):
    """The thing is in a state that doesn't allow this."""

    status = 409


class StorageFull(TandemError):
    """No room on the gateway's disk, or none left of the tenant's share."""

    status = 507
    code = "insufficient_storage"
