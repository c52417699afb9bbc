"""OpenVINO GenAI's continuous batching from a GGUF. Arguments: the .gguf."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any


def main() -> None:
    work = json.load(sys.stdin)
    started_s = time.perf_counter()
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 2, "NUM_STREAMS": "1"}
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = 64
    scheduler.cache_size = 2
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", properties)
    emit("start_s", time.perf_counter() - started_s)
    serial = iter(range(1 << 30))

    def run(jobs: list[dict[str, Any]]) -> tuple[float, float]:
        begun_s = time.perf_counter()
        handles = []
        for job in jobs:
            config = genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = job["num_output"]
            config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
            prompt = ov.Tensor(np.array([job["prompt"]], dtype=np.int64))
            handles.append(pipeline.add_request(next(serial), prompt, config))
        first_s = 0.0
        while pipeline.has_non_finished_requests():
            pipeline.step()
            if not first_s and handles[0].can_read():
                first_s = time.perf_counter() - begun_s
        return first_s, time.perf_counter() - begun_s

    run([work["a"]])
    for _ in range(work["repeats"]):
        first_s, total_s = run([work["a"]])
        emit("a_decode_tok_s", (work["a"]["num_output"] - 1) / (total_s - first_s))
        emit("a_ttft_s", first_s)
    run([work["c"]])
    for _ in range(work["repeats"]):
        emit("c_prefill_tok_s", len(work["c"]["prompt"]) / run([work["c"]])[1])
    run(work["b"][:16])
    output_tokens = sum(j["num_output"] for j in work["b"])
    for _ in range(work["b_repeats"]):
        emit("b_output_tok_s", output_tokens / run(work["b"])[1])
    emit("peak_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def emit(name: str, value: float) -> None:
    print(json.dumps({"name": name, "value": value}), flush=True)


if __name__ == "__main__":
    main()
