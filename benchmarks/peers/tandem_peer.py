"""Tandem itself, offline, the same way. Arguments: the model, then EngineConfig settings as name=value."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any


def main() -> None:
    work = json.load(sys.stdin)
    started_s = time.perf_counter()
    from tandem import LLM, SamplingParams

    options: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": 64}
    for argument in sys.argv[2:]:
        name, _, value = argument.partition("=")
        options[name] = json.loads(value) if value[:1].isdigit() or value in ("true", "false") else value
    llm = LLM(sys.argv[1], **options)
    emit("start_s", time.perf_counter() - started_s)

    def run(jobs: list[dict[str, Any]]) -> tuple[float, Any]:
        params = [SamplingParams(temperature=0.0, max_tokens=j["num_output"], ignore_eos=True) for j in jobs]
        begun_s = time.perf_counter()
        outputs = llm.generate([j["prompt"] for j in jobs], params, use_tqdm=False)
        taken_s = time.perf_counter() - begun_s
        assert all(len(o.outputs[0].token_ids) == j["num_output"] for o, j in zip(outputs, jobs, strict=True))
        return taken_s, outputs[0].outputs[0].usage

    run([work["a"]])
    for _ in range(work["repeats"]):
        _, usage = run([work["a"]])
        emit("a_decode_tok_s", (work["a"]["num_output"] - 1) / usage.decode_s)
        emit("a_ttft_s", usage.prefill_s)
    run([work["c"]])
    for _ in range(work["repeats"]):
        emit("c_prefill_tok_s", len(work["c"]["prompt"]) / run([work["c"]])[0])
    run(work["b"][:8])
    output_tokens = sum(j["num_output"] for j in work["b"])
    for _ in range(work["b_repeats"]):
        emit("b_output_tok_s", output_tokens / run(work["b"])[0])
    emit("peak_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def emit(name: str, value: float) -> None:
    print(json.dumps({"name": name, "value": value}), flush=True)


if __name__ == "__main__":
    main()
