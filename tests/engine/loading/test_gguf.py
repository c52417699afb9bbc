"""The GGUF reader: good files, and cases gg-03 and gg-04 (alignment; hostile and damaged headers)."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tandem.core.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported
from tandem.engine.loading.gguf import read_gguf
from tests.engine.loading.gguf_builder import BOOL, F32, FLOAT32, INT32, Q8_0, STRING, UINT8, UINT32, GGUFBuilder


def three_tensors(builder: GGUFBuilder) -> GGUFBuilder:
    return builder.floats("a", [1.0] * 4).floats("b", [2.0] * 4).floats("c", [3.0] * 4)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors(tmp_path: Path, version: int) -> None:
    builder = GGUFBuilder(version=version).key("n", UINT32, 7).key("f", FLOAT32, 0.5).key("yes", BOOL, True)
    builder.key("s", STRING, "é").array("t", STRING, ["a", "", "日本"]).array("i", INT32, [-1, 2])
    file = read_gguf(builder.tensor("w", [3, 2], F32, bytes(24)).write(tmp_path / "x.gguf"))
    assert file.version == version
    assert {k: v for k, v in file.metadata.items() if k != "i"} == {
        "n": 7,
        "f": 0.5,
        "yes": True,
        "s": "é",
        "t": ["a", "", "日本"],
    }
    assert file.metadata["i"].tolist() == [-1, 2]
    assert file.stored_as == {
        "n": "uint32",
        "f": "float32",
        "yes": "bool",
        "s": "string",
        "t": "string[]",
        "i": "int32[]",
    }
    assert file.tensors["w"].shape == (2, 3)
    assert file.raw("w").nbytes == 24
    assert file.blocks("w").shape == (6, 4)


@pytest.mark.parametrize("alignment", [None, 16, 32, 64])
def test_alignment_is_obeyed_whatever_the_header_length(tmp_path: Path, alignment: int | None) -> None:
    for length in range(64):
        builder = GGUFBuilder(alignment=alignment or 32)
        if alignment:
            builder.key("general.alignment", UINT32, alignment)
        file = read_gguf(three_tensors(builder.key("s", STRING, "x" * length)).write(tmp_path / "x.gguf"))
        values = [np.frombuffer(file.raw(name), "<f4").tolist() for name in "abc"]
        assert values == [[1.0] * 4, [2.0] * 4, [3.0] * 4]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(UINT32, 0), (UINT32, 3), (UINT32, 4), (INT32, -16), (INT32, 32), (STRING, "32"), (FLOAT32, 32.0)],
)
def test_bad_alignment_is_refused_by_name(tmp_path: Path, kind: int, value: float | str) -> None:
    path = three_tensors(GGUFBuilder().key("general.alignment", kind, value)).write(tmp_path / "x.gguf")
    with pytest.raises(ModelDamaged, match=r"general\.alignment"):
        read_gguf(path)


def test_offset_off_the_alignment(tmp_path: Path) -> None:
    path = GGUFBuilder().tensor("w", [4], F32, bytes(32), offset=8).write(tmp_path / "x.gguf")
    with pytest.raises(ModelDamaged, match="tensor w begins at offset 8"):
        read_gguf(path)


def one(dims: list[int], kind: int = F32, data: bytes = b"") -> bytes:
    return GGUFBuilder().tensor("w", dims, kind, data).build()


HOSTILE: dict[str, tuple[bytes, type[ModelError], str]] = {
    "zero dimension": (one([1, 0]).ljust(88, b"\0"), ModelDamaged, "tensor w .*none may be 0"),
    "empty key": (GGUFBuilder().key("", UINT32, 1).build(), ModelDamaged, "key 0 is empty"),
    "a million dimensions": (one([1] * 1_000_000), ModelDamaged, "tensor w has 1000000 dimensions"),
    "no dimensions": (one([]), ModelDamaged, "tensor w has 0 dimensions"),
    "product wraps": (one([4194305, 4194305, 211106198978564], F32, bytes(16)), ModelDamaged, "cut short: tensor w"),
    "2^60 keys": (GGUFBuilder(num_keys=1 << 60).build(), ModelDamaged, "metadata of 1152921504606846976 keys"),
    "2^60 tensors": (GGUFBuilder(num_tensors=1 << 60).build(), ModelDamaged, "a table of 1152921504606846976 tensors"),
    "string of 2^63": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63) + bytes(64),
        ModelDamaged,
        "name of metadata key 0 would take 9223372036854775808 bytes",
    ),
    "array of 2^60 strings": (GGUFBuilder().array("t", STRING, [], 1 << 60).build(), ModelDamaged, "t would take"),
    "array of 2^62 numbers": (GGUFBuilder().array("n", INT32, [], 1 << 62).build(), ModelDamaged, "n would take"),
    "string in array too long": (
        GGUFBuilder(
            num_keys=1, keys=[*GGUFBuilder().array("t", STRING, ["a"], 2).keys, struct.pack("<Q", 999)]
        ).build(),
        ModelDamaged,
        "string 1 of t",
    ),
    "array of arrays": (GGUFBuilder().array("t", 9, [], 0).build(), ModelUnsupported, "t is an array of arrays"),
    "value type 99": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IQQ", 99, 0, 0),
        ModelDamaged,
        "k has value type 99",
    ),
    "tensor type 250": (one([4], 250, bytes(16)), ModelUnsupported, "tensor w has type 250"),
    "tensor type without reader": (one([256], 16, bytes(66)), ModelUnsupported, "tensor w has type IQ2_XXS"),
    "twice the same tensor": (
        GGUFBuilder().floats("w", [1.0]).floats("w", [1.0]).build(),
        ModelDamaged,
        "two tensors have the name w",
    ),
    "twice the same key": (
        GGUFBuilder().key("k", UINT8, 1).key("k", UINT8, 1).build(),
        ModelDamaged,
        "key k occurs twice",
    ),
    "version 1": (GGUFBuilder(version=1).build(), ModelUnsupported, "version 1"),
    "version 4": (GGUFBuilder(version=4).build(), ModelUnsupported, "version 4"),
    "big endian": (GGUFBuilder(version=0x03000000).build(), ModelUnsupported, "big-endian"),
    "not a GGUF": (b"PK\3\4" + bytes(60), ModelDamaged, "isn't a GGUF"),
    "empty file": (b"", ModelDamaged, "is empty"),
    "three bytes": (b"GGU", ModelDamaged, "magic number would take 4 bytes"),
    "not UTF-8": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xfe" + struct.pack("<IQQ", UINT8, 0, 0),
        ModelDamaged,
        "isn't UTF-8",
    ),
    "rows across blocks": (  # case q-03, step 2
        GGUFBuilder().tensor("ffn_down.weight", [172, 64], Q8_0, bytes(172 * 64)).build(),
        ModelDamaged,
        "ffn_down.weight is Q8_0 with rows of 172 elements; .*block length, 32",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_fail_fast_in_one_sentence(tmp_path: Path, name: str) -> None:
    raw, kind, pattern = HOSTILE[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    started = time.monotonic()
    with pytest.raises(kind, match=pattern) as caught:
        read_gguf(path)
    assert time.monotonic() - started < 2
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = three_tensors(GGUFBuilder().array("t", STRING, ["a", "bc"]).key("s", STRING, "x")).build()
    path = tmp_path / "x.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelDamaged):
            read_gguf(path)
    path.write_bytes(whole)
    read_gguf(path)


def test_cut_in_the_last_tensor(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(three_tensors(GGUFBuilder()).build()[:-8])
    with pytest.raises(ModelDamaged, match="cut short: tensor c"):
        read_gguf(path)


def test_absent_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "no.gguf", tmp_path):
        with pytest.raises(ModelNotFound, match="can't be read"):
            read_gguf(path)


def test_a_large_vocabulary_is_read_quickly(tmp_path: Path) -> None:
    tokens = [f"token {number}" for number in range(262_144)]
    path = GGUFBuilder().array("tokenizer.ggml.tokens", STRING, tokens).write(tmp_path / "x.gguf")
    started = time.process_time()
    file = read_gguf(path)
    assert time.process_time() - started < 0.5
    assert file.metadata["tokenizer.ggml.tokens"] == tokens
