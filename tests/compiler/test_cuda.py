"""Builds for GPUs on a machine without one: what is refused, and the whole build with the CPU standing in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from tandem.compiler import cuda
from tandem.compiler.aoti_check import generated_code, pool_copies
from tandem.compiler.build import build_engine_file
from tandem.compiler.cuda_graph import DECODE, MIXED, SINGLE
from tandem.compiler.progress import SilentStages
from tandem.config.build import BuildOptions
from tandem.config.engine import EngineConfig
from tandem.core.errors import ConfigError, ModelDamaged
from tandem.engine.kernels.ops.kv_cache import cache_shape
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.engine.loading.engine_file import EngineFile, open_engine_file
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.models.decoder import Decoder
from tandem.engine.runner.compiled_making import PACKAGE
from tandem.engine.runner.cuda_weights import constants_on, pack_constants, read_entries
from tandem.engine.runner.graphs import load_graph
from tandem.engine.runner.making import resolve_machine
from tests.engine.models.tiny import llama_config, save_random
from tests.engine.text.tiny import byte_level

pytest.importorskip("triton")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_random(llama_config(num_hidden_layers=2, vocab_size=320), folder)
    (folder / "tokenizer.json").write_text(json.dumps(byte_level()))
    return folder


@pytest.fixture(scope="module")
def built(model: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineFile:
    path = tmp_path_factory.mktemp("engines") / "tiny.engine"
    options = BuildOptions(model=str(model), output=str(path), device="cuda", precision="float32", kv_dtype="float32")
    cuda.build_for_cuda(options, SilentStages(), CPU)
    return open_engine_file(path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_built_or_opened(model: Path, built: EngineFile, tmp_path: Path) -> None:
    options = BuildOptions(model=str(model), output=str(tmp_path / "a.engine"), device="cuda")
    with pytest.raises(ConfigError, match=r"torch sees no GPU\. An engine file for a GPU is built on the machine"):
        build_engine_file(options, SilentStages())
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        ConfigError, match=r"was built for a GPU .* torch sees no GPU\. Serve the model it was built from"
    ):
        resolve_machine(EngineConfig(model=str(built.path)), built)


def test_the_manifest_comes_back(built: EngineFile) -> None:
    manifest = built.manifest
    assert manifest.target.device == "cuda"
    assert manifest.shapes.buckets == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert manifest.quality is not None
    assert manifest.quality.mean_kl < 1e-6
    entries = read_entries(manifest.graphs, built.path)
    assert {e.name for e in entries} >= {"embedding", "layers.0.qkv", "layers.1.gate_up", "head", "final_norm"}
    assert [(w.name, w.offset, w.size_bytes) for w in manifest.weights] == [
        (e.name, e.offset, e.size_bytes) for e in entries
    ]
    constants = constants_on(CPU, built.map_weights(), entries)
    stored = open_checkpoint(Path(manifest.source.name)).read("model.layers.0.self_attn.q_proj.weight", torch.float32)
    assert torch.equal(constants["layers.0.qkv"][: len(stored)], stored)


STEPS: list[tuple[str, list[int], list[int], list[int]]] = [
    (MIXED, [5, 3], [5, 3], [4, 7]),
    (DECODE, [1, 1], [6, 4], [0, 1]),
    (MIXED, [2, 0], [8, 0], [1, 1]),
    (SINGLE, [1], [9], [0]),
]
"""Graph, queries, contexts, wanted rows; the third one is a lone sequence beside padding."""


def test_compiled_steps_give_the_references_logits(built: EngineFile) -> None:
    spec = built.spec
    constants = constants_on(CPU, built.map_weights(), read_entries(built.manifest.graphs, built.path))
    package = built.extract(PACKAGE)
    graphs = {name: load_graph(package, name, constants, recordable=True) for name in (SINGLE, DECODE, MIXED)}
    group = (LayerGroup(tuple(range(spec.num_layers)), None),)
    decoder = Decoder(spec, group, open_checkpoint(Path(built.manifest.source.name)), torch.float32)
    shape = cache_shape(9, spec.num_kv_heads, 8, spec.head_dim, torch.float32)
    ours, theirs = ([torch.zeros(shape) for _ in range(spec.num_layers)] for _ in range(2))
    for name, queries, contexts, rows in STEPS:
        step = step_of(queries, contexts, rows)
        (got,) = graphs[name]([*_inputs(step), *ours])
        expected = decoder.logits(decoder.forward(step, theirs)[step.logit_rows.long()])
        assert (got - expected).abs().max() < 1e-4, name
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
    assert pool_copies(generated_code(package), 2 * 9 * spec.num_kv_heads * 8 * spec.head_dim) == []


SERVE = """
import sys
from pathlib import Path
import torch
from benchmarks.device.common import make_plan, make_request
from tandem.config.engine import EngineConfig
from tandem.engine.loading.engine_file import open_engine_file
from tandem.engine.memory import plan_memory
from tandem.engine.runner.compiled_cuda_making import open_runner

file = open_engine_file(Path(sys.argv[1]))
config = EngineConfig(model=sys.argv[1], num_blocks=32, max_model_len=64, max_num_seqs=4)
runner = open_runner(file, config, plan_memory(file.spec, config, "float32", 0), torch.device("cpu"), None)
requests = [make_request(count, 3, 1, first_block=3 * i, seed=i) for i, count in enumerate((9, 1, 5))]
work = [(request, 0, len(request.token_ids)) for request in requests]
for _ in range(3):
    for request, token in zip(requests, runner.execute(make_plan(work)).token_ids, strict=True):
        request.token_ids.append(token)
    work = [(request, len(request.token_ids) - 1, 1) for request in requests]
print([request.token_ids for request in requests])
"""


def test_the_file_is_run_from_prompt_to_tokens(built: EngineFile) -> None:
    """By the runner of GPUs in Triton's interpreter: a mixed step, then decode steps of three in a bucket of four."""
    result = subprocess.run(
        [sys.executable, "-c", SERVE, str(built.path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    group = (LayerGroup(tuple(range(built.spec.num_layers)), None),)
    decoder = Decoder(built.spec, group, open_checkpoint(Path(built.manifest.source.name)), torch.float32)
    for ids in json.loads(result.stdout.splitlines()[-1]):
        count = len(ids)
        step = step_of([count], [count], list(range(count)))
        step.token_ids = torch.tensor(ids, dtype=torch.int32)
        memory = [torch.zeros(2, 4, built.spec.num_kv_heads, 8, built.spec.head_dim) for _ in group[0].layers]
        foretold = decoder.logits(decoder.forward(step, memory)).argmax(-1).tolist()
        assert foretold[-4:-1] == ids[-3:]


def _inputs(step: StepTensors) -> list[Tensor]:
    (group,) = step.groups
    table, slots = group.block_tables, group.slot_mapping.int()
    return [step.token_ids, step.positions, step.query_start, step.context_len, table, slots, step.logit_rows]


def step_of(queries: list[int], contexts: list[int], rows: list[int]) -> StepTensors:
    """Sequence s has the blocks 4 s … 4 s + 3 of 8 tokens."""
    positions = [p for n, c in zip(queries, contexts, strict=True) for p in range(c - n, c)]
    owners = [s for s, n in enumerate(queries) for _ in range(n)]
    ints: Any = [torch.tensor(values, dtype=torch.int32) for values in (positions, [0, *queries], contexts, rows)]
    tables = torch.arange(len(queries) * 4, dtype=torch.int32).view(-1, 4)
    slots = torch.tensor([s * 32 + p for s, p in zip(owners, positions, strict=True)])
    ids = ints[0] * 7 + 3
    return StepTensors(ids, ints[0], ints[1].cumsum(0).int(), ints[2], [GroupTensors(tables, slots)], ints[3])


def test_constants_lie_aligned_and_come_back() -> None:
    constants = {
        "a": torch.randn(3, 5).bfloat16(),
        "b.codes": torch.arange(33, dtype=torch.uint8),
        "c": torch.randn(2, 2).to(torch.float8_e4m3fn),
    }
    image, entries = pack_constants(constants)
    assert [entry.offset % 256 for entry in entries] == [0, 0, 0]
    told = msgspec.json.decode(msgspec.json.encode({"constants": entries}))
    back = constants_on(CPU, image, read_entries(told, Path("x")))
    assert all(torch.equal(back[name].float(), tensor.float()) for name, tensor in constants.items())


@pytest.mark.parametrize(
    "change",
    [{"offset": 4096}, {"offset": 8}, {"shape": (4, 4)}, {"dtype": "float9"}, {"offset": -256}, {"size_bytes": 16}],
)
def test_entries_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    image, (entry,) = pack_constants({"a": torch.zeros(2, 4)})
    with pytest.raises(ModelDamaged, match="which can't be"):
        constants_on(CPU, image, [msgspec.structs.replace(entry, **change)])


def test_a_manifest_without_entries_is_damaged() -> None:
    with pytest.raises(ModelDamaged, match="doesn't say where"):
        read_entries({}, Path("x.engine"))
