"""The layers of compile_candidates.py in OpenVINO, bf16 (float32 where there is none). Argument: their shape."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

HIDDEN, QKV, ATTENTION, MLP = 576, 960, 576, 1536


def main() -> None:
    shape = json.loads(sys.argv[1])
    core, found = ov.Core(), []
    settings = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": shape["threads"], "NUM_STREAMS": "1"}
    for tokens in shape["sizes"]:
        compiled = core.compile_model(model(tokens, shape["layers"]), "CPU", settings)
        request = compiled.create_infer_request()
        given = {0: np.random.randn(tokens, HIDDEN).astype(np.float32)}
        request.infer(given)
        taken = []
        for _ in range(20):
            begun_s = time.perf_counter()
            request.infer(given)
            taken.append(time.perf_counter() - begun_s)
        found.append(statistics.median(taken) * 1e3 / shape["layers"])
    print(json.dumps(found))


def model(tokens: int, layers: int) -> Any:
    x = given = ops.parameter([tokens, HIDDEN], np.float32)
    for _ in range(layers):
        mixed = ops.slice(product(norm(x), QKV, HIDDEN), [0], [ATTENTION], [1], [1])
        x = ops.add(x, product(mixed, HIDDEN, ATTENTION))
        both = product(norm(x), 2 * MLP, HIDDEN)
        gate, up = ops.slice(both, [0], [MLP], [1], [1]), ops.slice(both, [MLP], [2 * MLP], [1], [1])
        x = ops.add(x, product(ops.multiply(ops.swish(gate), up), HIDDEN, MLP))
    return ov.Model([x], [given], "layers")


def norm(x: Any) -> Any:
    mean = ops.reduce_mean(ops.multiply(x, x), [1], keep_dims=True)
    return ops.divide(x, ops.sqrt(ops.add(mean, ops.constant(np.float32(1e-5)))))


def product(x: Any, outputs: int, inputs: int) -> Any:
    weights = (np.random.randn(outputs, inputs) * 0.02).astype(np.float32)
    return ops.matmul(x, ops.constant(weights), False, True)


if __name__ == "__main__":
    main()
