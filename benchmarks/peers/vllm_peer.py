"""vLLM on the CPU, bf16, its compiled mode (the default) unless EAGER=1. Arguments: the model's folder."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def main() -> None:
    work = json.load(sys.stdin)
    started_s = time.perf_counter()
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=sys.argv[1],
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        enforce_eager=os.environ.get("EAGER") == "1",
        skip_tokenizer_init=True,
    )
    emit("start_s", time.perf_counter() - started_s)

    def run(jobs: list[dict[str, Any]]) -> float:
        params = [
            SamplingParams(temperature=0, max_tokens=j["num_output"], ignore_eos=True, detokenize=False) for j in jobs
        ]
        begun_s = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": j["prompt"]} for j in jobs], params, use_tqdm=False)
        taken_s = time.perf_counter() - begun_s
        assert all(len(o.outputs[0].token_ids) == j["num_output"] for o, j in zip(outputs, jobs, strict=True))
        return taken_s

    run([work["a"]])
    for _ in range(work["repeats"]):
        first_s = run([work["a"] | {"num_output": 1}])
        emit("a_decode_tok_s", (work["a"]["num_output"] - 1) / (run([work["a"]]) - first_s))
        emit("a_ttft_s", first_s)
    run([work["c"]])
    for _ in range(work["repeats"]):
        emit("c_prefill_tok_s", len(work["c"]["prompt"]) / run([work["c"]]))
    run(work["b"][:8])
    output_tokens = sum(j["num_output"] for j in work["b"])
    for _ in range(work["b_repeats"]):
        emit("b_output_tok_s", output_tokens / run(work["b"]))
    emit("peak_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def emit(name: str, value: float) -> None:
    print(json.dumps({"name": name, "value": value}), flush=True)


if __name__ == "__main__":
    main()
