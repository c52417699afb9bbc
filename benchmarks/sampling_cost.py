"""What random sampling costs beside greedy: 64 answers of 64 tokens at once, in one run.

python -m benchmarks.sampling_cost
"""

from __future__ import annotations

import time
from typing import Any

from tandem import LLM, SamplingParams

NUM_ANSWERS, NUM_TOKENS = 64, 64
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.8, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "temperature 0.8, top_k 50": {"temperature": 0.8, "top_k": 50},
}


def main() -> None:
    llm = LLM("smollm2-135m", max_num_seqs=NUM_ANSWERS, enable_prefix_caching=False, dtype="bfloat16")
    for name, settings in [("warm-up", KINDS["greedy"]), *KINDS.items()]:
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=1, **settings)
        started_s = time.perf_counter()
        llm.generate(["Once upon a time"] * NUM_ANSWERS, params, use_tqdm=False)
        print(f"{name:28} {NUM_ANSWERS * NUM_TOKENS / (time.perf_counter() - started_s):7.0f} tok/s")


if __name__ == "__main__":
    main()
