"""OpenAI's `service_tier` and our service classes: which means which, and what an answer says was used."""

from __future__ import annotations

from typing import Final

from tandem.core.errors import InvalidRequest
from tandem.core.types import ServiceClass

CLASS_OF_TIER: Final[dict[str, ServiceClass]] = {
    "auto": "interactive",
    "default": "interactive",
    "priority": "interactive",
    "fast": "interactive",
    "scale": "interactive",
    "flex": "batch",
}
"""tier → class."""

TIER_OF_CLASS: Final[dict[ServiceClass, str]] = {"interactive": "default", "batch": "flex"}
"""class → the tier an answer names when the client's own tier was not what it got."""


def class_of_tier(tier: str | None) -> ServiceClass:
    """The class a client asks for; none asked for is interactive. Raises `InvalidRequest` for an unknown tier."""
    if tier is None:
        return "interactive"
    try:
        return CLASS_OF_TIER[tier]
    except KeyError:
        allowed = ", ".join(CLASS_OF_TIER)
        raise InvalidRequest(
            f"service_tier is {tier!r:.60}; it must be one of {allowed}.", param="service_tier"
        ) from None


def tier_used(asked: str | None, used: ServiceClass) -> str:
    """What the answer says: the asked-for tier if its class was used, else the used class's own name.

    `auto` asks us to choose, so the answer names the choice.
    """
    if asked is not None and asked != "auto" and CLASS_OF_TIER.get(asked) == used:
        return asked
    return TIER_OF_CLASS[used]
