"""llama.cpp through llama-cpp-python's C functions: a and c only, as it serves one stream best.

Arguments: the .gguf, and perhaps a type ("Q4_0") to requantise it to first, in a temporary file.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import llama_cpp as llama
import numpy as np


def main() -> None:
    work = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        path = requantised(sys.argv[1], Path(folder)) if len(sys.argv) > 2 else sys.argv[1]
        started_s = time.perf_counter()
        engine = Engine(path)
        emit("start_s", time.perf_counter() - started_s)
        engine.run(work["a"])
        for _ in range(work["repeats"]):
            first_s, total_s = engine.run(work["a"])
            emit("a_decode_tok_s", (work["a"]["num_output"] - 1) / (total_s - first_s))
            emit("a_ttft_s", first_s)
        engine.run(work["c"])
        for _ in range(work["repeats"]):
            emit("c_prefill_tok_s", len(work["c"]["prompt"]) / engine.run(work["c"])[1])
    emit("peak_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


class Engine:
    def __init__(self, path: str) -> None:
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = llama.llama_model_load_from_file(path.encode(), settings)
        context = llama.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = 2048, 2048, 512
        context.n_threads = context.n_threads_batch = 2
        self._context = llama.llama_init_from_model(self._model, context)
        self._vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))

    def run(self, job: dict[str, object]) -> tuple[float, float]:
        """Seconds to the first token and to the last."""
        prompt, num_output = job["prompt"], job["num_output"]
        assert isinstance(prompt, list)
        assert isinstance(num_output, int)
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        begun_s = time.perf_counter()
        token = self._decode(prompt)
        first_s = time.perf_counter() - begun_s
        for _ in range(num_output - 1):
            token = self._decode([token])
        return first_s, time.perf_counter() - begun_s

    def _decode(self, tokens: list[int]) -> int:
        array = (llama.llama_token * len(tokens))(*tokens)
        assert llama.llama_decode(self._context, llama.llama_batch_get_one(array, len(tokens))) == 0
        logits = llama.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab,)).argmax())


def requantised(path: str, folder: Path) -> str:
    settings = llama.llama_model_quantize_default_params()
    settings.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{sys.argv[2]}")
    settings.allow_requantize = True
    settings.nthread = 2
    target = str(folder / "model.gguf")
    assert llama.llama_model_quantize(path.encode(), target.encode(), ctypes.byref(settings)) == 0
    return target


def emit(name: str, value: float) -> None:
    print(json.dumps({"name": name, "value": value}), flush=True)


if __name__ == "__main__":
    main()
