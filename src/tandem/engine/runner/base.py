"""What a runner is: a step's plan in, chosen tokens out. The scheduler and the core know no more of the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tandem.core.request import Request
from tandem.engine.messages import TokenLogprobs
from tandem.engine.scheduler import StepPlan


@dataclass(slots=True)
class StepResult:
    """Tokens of one step, in the order of the plan's sampling requests (n in a row for one that forks)."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None = None
    """Beside `token_ids`; None where nobody asked."""
    prompt_logprobs: dict[Request, list[TokenLogprobs | None]] = field(default_factory=dict)
    """For the prompt positions computed in this step, of requests that asked."""


class ModelRunner(Protocol):
    """Runs one model. Owns the weights and the KV memory; block ids index into the latter."""

    name: str
    """For people and for /tandem/state: "paged" or "compiled", and with which kernels."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Make the plan's block copies, compute its tokens, sample. Raises only if the engine can't go on."""
        ...

    def release(self, request: Request) -> None:
        """Forget what is kept for a request that finished or lost its seat."""
        ...
