"""The work that all engines are measured on: random token ids, greedy, end-of-sequence ignored, no prefix cache.

a: one prompt of 128 tokens, 128 out, alone.  b: 64 requests at once, prompts of 32–512 tokens, 16–256 out.
c: one prompt of 1,024 tokens, one out. Ids are ordinary ones of SmolLM2's vocabulary; the seed is fixed.
"""

from __future__ import annotations

import random
from typing import NamedTuple

SEED = 20261
FIRST_ORDINARY_ID = 17
VOCAB = 49152


class Job(NamedTuple):
    prompt: list[int]
    num_output: int


class Workload(NamedTuple):
    a: Job
    b: list[Job]
    c: Job

    @property
    def b_prompt_tokens(self) -> int:
        return sum(len(job.prompt) for job in self.b)

    @property
    def b_output_tokens(self) -> int:
        return sum(job.num_output for job in self.b)


def make_workload() -> Workload:
    """The same every time: 18,960 prompt and 8,281 output tokens in b."""
    rng = random.Random(SEED)
    sizes = [(rng.randint(32, 512), rng.randint(16, 256)) for _ in range(64)]

    def prompt(length: int) -> list[int]:
        return [rng.randrange(FIRST_ORDINARY_ID, VOCAB) for _ in range(length)]

    b = [Job(prompt(length), num_output) for length, num_output in sizes]
    return Workload(a=Job(prompt(128), 128), b=b, c=Job(prompt(1024), 1))
