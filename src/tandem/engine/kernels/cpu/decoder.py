"""A decoder-only transformer that runs one engine step, all layers, in one call of the native kernels.

It owns the packed weights and the KV pool. Who schedules, who allocates blocks and who samples is not its business: it
takes a batch of tokens with block tables, writes their KV, and gives logits, or the most likely tokens, of the rows
asked for.

What varies with the batch: nothing. A row's logits are the same bits alone, in any batch, in any chunking and with any
number of threads, on one instruction set. Between instruction sets they differ by rounding.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from tandem.core.errors import MemoryTooSmall, ModelDamaged, ModelUnsupported
from tandem.engine.kernels.cpu.native import DTYPES, VARIANTS, Config, Form, Kernels, SampleArgs, StepArgs
from tandem.engine.kernels.cpu.weights import LINE, PANEL, ImageEntry, RowMaps, parse_kind
from tandem.engine.kernels.reference import rope_frequencies
from tandem.engine.kvcache.layer_groups import LayerGroup, group_layers
from tandem.engine.models.spec import ModelSpec, RopeScaling

ReadTensor = Callable[[str, torch.dtype], torch.Tensor]
WeightDType = Literal["bfloat16", "float32"]
KvDType = Literal["bfloat16", "float32", "int8"]

MAX_HEAD_DIM = 256
HUGE_PAGE = 2 << 20
DEFAULT_SPIN_US = 30
"""How long a thread waits awake for the others before it parks."""
DEFAULT_REST_US = 300
"""How long it waits awake for the next step: to wake one that is parked takes a tenth of a small model's step."""

_QKV, _OUTPUT, _GATE_UP, _DOWN, _HEAD, _EMBEDDING = range(6)
_INPUT_NORM, _MLP_NORM, _POST_ATTENTION, _POST_MLP, _Q_NORM, _K_NORM, _BIAS, _LAST_NORM = range(8)
_VECTORS = ("input_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm", "q_norm", "k_norm", "qkv_bias")
"""By role, as csrc/build.cpp numbers them and weights.py names them."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    block_size: int
    num_blocks: int
    max_tokens: int
    max_context: int | None


@dataclass(frozen=True, slots=True)
class _Settings:
    """What `CpuDecoder` takes beside the network and its weights."""

    kernels: Kernels
    kv_dtype: KvDType
    threads: int
    sizes: _Sizes
    groups: Sequence[LayerGroup] | None
    variant: str | None
    spin_us: int
    rest_us: int


class CpuDecoder:
    """See the module. Not for several threads at once; close it, or drop it, to free its memory."""

    def __init__(
        self,
        spec: ModelSpec,
        read: ReadTensor,
        *,
        kernels: Kernels,
        weight_dtype: WeightDType = "bfloat16",
        kv_dtype: KvDType = "bfloat16",
        threads: int = 1,
        block_size: int = 16,
        num_blocks: int,
        max_tokens: int,
        max_context: int | None = None,
        groups: Sequence[LayerGroup] | None = None,
        variant: str | None = None,
        spin_us: int = DEFAULT_SPIN_US,
        rest_us: int = DEFAULT_REST_US,
    ) -> None:
        """`read` gives a tensor by its name in Hugging Face's layout, in the type asked for or another float.

        max_tokens bounds a step's tokens, max_context a sequence's (default: the model's own). `variant` forces an
        instruction set. Raises ModelUnsupported, ModelDamaged (a tensor of a wrong shape), MemoryTooSmall.
        """
        sizes = _Sizes(block_size, num_blocks, max_tokens, max_context)
        settings = _Settings(kernels, kv_dtype, threads, sizes, groups, variant, spin_us, rest_us)
        self._set_up(spec, settings, DTYPES[weight_dtype])
        _Loader(self, read, getattr(torch, weight_dtype)).load()

    @classmethod
    def from_image(
        cls,
        spec: ModelSpec,
        image: torch.Tensor,
        entries: Sequence[ImageEntry],
        *,
        kernels: Kernels,
        kv_dtype: KvDType = "bfloat16",
        threads: int = 1,
        block_size: int = 16,
        num_blocks: int,
        max_tokens: int,
        max_context: int | None = None,
        groups: Sequence[LayerGroup] | None = None,
        variant: str | None = None,
        spin_us: int = DEFAULT_SPIN_US,
        rest_us: int = DEFAULT_REST_US,
        copy: bool = False,
    ) -> CpuDecoder:
        """A decoder over what `pack_image` made. `image` is only read, and lives as long as the decoder does.

        `copy`: read it once into memory of the decoder's own, which can have huge pages where a mapped file can't.
        Raises ModelUnsupported, ModelDamaged (an image that isn't this network's), MemoryTooSmall.
        """
        decoder = cls.__new__(cls)
        sizes = _Sizes(block_size, num_blocks, max_tokens, max_context)
        settings = _Settings(kernels, kv_dtype, threads, sizes, groups, variant, spin_us, rest_us)
        decoder._set_up(spec, settings, -1)
        if copy:
            image = _in_huge_pages(image)
        decoder._image = image
        _Placer(decoder, image, entries).place()
        decoder.weight_bytes = image.numel()
        return decoder

    def _set_up(self, spec: ModelSpec, settings: _Settings, weights: int) -> None:
        """All but the weights: `weights` is their type, or -1 for packed matrices of a form each."""
        check_supported(spec, settings.sizes.block_size)
        self.spec = spec
        windows = [spec.window(i) for i in range(spec.num_layers)]
        self.groups = tuple(settings.groups) if settings.groups is not None else group_layers(windows)
        self.max_tokens = settings.sizes.max_tokens
        self.block_size = settings.sizes.block_size
        self.num_blocks = settings.sizes.num_blocks
        self.max_context = settings.sizes.max_context or spec.max_position
        self.variant = settings.variant or settings.kernels.best
        self._library = settings.kernels.library
        self._threads = settings.threads
        self._handle: int | None = None
        self._image: torch.Tensor | None = None
        config, keep = self._config(settings, weights)
        error = ctypes.c_char_p()
        self._handle = self._library.tandem_decoder_create(ctypes.byref(config), ctypes.byref(error))
        del keep
        if not self._handle:
            raise MemoryTooSmall(
                f"The decoder for {spec.family} with {self.num_blocks} KV blocks can't be set up: "
                f"{(error.value or b'').decode()}. Give it fewer blocks or fewer tokens a step."
            )
        sizes = (ctypes.c_int64 * 4)()
        self._library.tandem_decoder_sizes(self._handle, sizes)
        self.weight_bytes, self.kv_bytes, self.scratch_bytes, self.block_bytes = sizes

    def step(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start: torch.Tensor,
        context_len: torch.Tensor,
        block_tables: Sequence[torch.Tensor],
        slot_mapping: Sequence[torch.Tensor],
        sample_rows: torch.Tensor,
        *,
        argmax_out: torch.Tensor,
        logits_out: torch.Tensor | None = None,
        hidden_out: torch.Tensor | None = None,
    ) -> None:
        """Runs T tokens of S sequences through all layers; prefill chunks and decodes in any mixture.

        token_ids, positions [T]; query_start [S + 1]; context_len [S], this step included; by group: block_tables
        [S, max_blocks], slot_mapping [T]; sample_rows [R], distinct; argmax_out [R]: all int32. logits_out [R, vocab]
        and hidden_out [R, hidden] (behind the last norm): float32. Entries of a block table before the window are not
        read.
        """
        assert len(block_tables) == len(slot_mapping) == len(self.groups)
        samples = sample_rows.numel()
        assert argmax_out.numel() >= samples
        assert logits_out is None or logits_out.shape == (samples, self.spec.vocab_size)
        assert hidden_out is None or hidden_out.shape == (samples, self.spec.hidden_size)
        arguments = self._arguments(
            token_ids, positions, query_start, context_len, block_tables, slot_mapping, sample_rows
        )
        arguments.argmax = _int32(argmax_out)
        arguments.logits = _float32(logits_out)
        arguments.hidden_out = _float32(hidden_out)
        wrong = self._library.tandem_decoder_step(self._open(), ctypes.byref(arguments))
        assert wrong is None, wrong.decode()

    def attention(
        self,
        layer: int,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        query_start: torch.Tensor,
        context_len: torch.Tensor,
        block_tables: Sequence[torch.Tensor],
        slot_mapping: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """One layer's RoPE, KV write and attention, for tests.

        qkv: float32 [T, heads + 2 kv heads, head_dim]; returns float32 [T, heads, head_dim].
        """
        strides = (ctypes.c_int32 * 3)()
        self._library.tandem_decoder_strides(self._open(), strides)
        tokens = len(positions)
        padded = torch.zeros(tokens, strides[0] // strides[2], strides[2])
        padded[..., : self.spec.head_dim] = qkv
        out = torch.zeros(tokens, strides[1])
        none = torch.zeros(tokens, dtype=torch.int32)
        arguments = self._arguments(none, positions, query_start, context_len, block_tables, slot_mapping, none[:0])
        wrong = self._library.tandem_decoder_attention(
            self._open(), ctypes.byref(arguments), layer, padded.data_ptr(), out.data_ptr()
        )
        assert wrong is None, wrong.decode()
        return out[:, : self.spec.num_heads * self.spec.head_dim].view(tokens, self.spec.num_heads, self.spec.head_dim)

    def sample(self, arguments: SampleArgs) -> None:
        """Chooses tokens from rows of logits, on the decoder's threads. sampling/native.py fills these in."""
        wrong = self._library.tandem_sample(self._open(), 0, ctypes.byref(arguments))
        assert wrong == 0

    def sample_scratch_bytes(self, vocab_size: int) -> int:
        """What `SampleArgs.scratch` must have."""
        return self._threads * int(self._library.tandem_sample_scratch_bytes(vocab_size))

    def copy_block(self, source: int, target: int) -> None:
        """Copies a block's KV in all layers of its group: before a shared block is written."""
        assert 0 <= source < self.num_blocks
        assert 0 <= target < self.num_blocks
        self._library.tandem_decoder_copy_block(self._open(), source, target)

    def close(self) -> None:
        if self._handle:
            self._library.tandem_decoder_free(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _open(self) -> int:
        assert self._handle, "the decoder is closed"
        return self._handle

    def _arguments(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start: torch.Tensor,
        context_len: torch.Tensor,
        block_tables: Sequence[torch.Tensor],
        slot_mapping: Sequence[torch.Tensor],
        sample_rows: torch.Tensor,
    ) -> StepArgs:
        tokens, sequences = token_ids.numel(), context_len.numel()
        assert positions.numel() == tokens
        assert query_start.numel() == sequences + 1
        assert all(table.shape == block_tables[0].shape and table.shape[0] == sequences for table in block_tables)
        assert all(slots.numel() == tokens for slots in slot_mapping)
        pointers = ctypes.c_void_p * len(self.groups)
        return StepArgs(
            num_tokens=tokens,
            num_sequences=sequences,
            num_samples=sample_rows.numel(),
            max_blocks=block_tables[0].shape[1],
            token_ids=_int32(token_ids),
            positions=_int32(positions),
            query_start=_int32(query_start),
            context_len=_int32(context_len),
            sample_rows=_int32(sample_rows),
            block_tables=ctypes.cast(pointers(*map(_int32, block_tables)), ctypes.c_void_p),
            slot_mapping=ctypes.cast(pointers(*map(_int32, slot_mapping)), ctypes.c_void_p),
        )

    def _config(self, settings: _Settings, weights: int) -> tuple[Config, list[object]]:
        """The configuration, and what must live until the library has copied it."""
        spec, layers = self.spec, self.spec.num_layers
        group_of, pool_of = [0] * layers, [0] * layers
        for index, group in enumerate(self.groups):
            assert len(group.layers) <= len(self.groups[0].layers), "no group may be longer than the first"
            for place, layer in enumerate(group.layers):
                group_of[layer], pool_of[layer] = index, place
        local = spec.local_rope_theta is not None
        tables = [rope_table(spec.rope_theta, spec.rope_scaling, spec.head_dim, self.max_context)]
        if spec.local_rope_theta is not None:
            tables.append(rope_table(spec.local_rope_theta, None, spec.head_dim, self.max_context))
        arrays = [
            (ctypes.c_int32 * layers)(*values)
            for values in (
                [spec.window(i) or 0 for i in range(layers)],
                group_of,
                pool_of,
                [int(local and spec.window(i) is not None) for i in range(layers)],
            )
        ]
        scale = spec.attention_scale if spec.attention_scale is not None else spec.head_dim**-0.5
        config = Config(
            variant=VARIANTS.index(self.variant),
            threads=settings.threads,
            spin_us=settings.spin_us,
            rest_us=settings.rest_us,
            num_layers=layers,
            hidden=spec.hidden_size,
            intermediate=spec.intermediate_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            vocab=spec.vocab_size,
            weight_dtype=weights,
            kv_dtype=DTYPES[settings.kv_dtype],
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            num_pools=len(self.groups[0].layers),
            num_groups=len(self.groups),
            max_tokens=self.max_tokens,
            max_seqs=self.max_tokens,
            max_context=self.max_context,
            activation=0 if spec.activation == "silu" else 1,
            tied=spec.tie_embeddings,
            qkv_bias=spec.qkv_bias,
            qk_norm=spec.qk_norm,
            post_norms=spec.post_norms,
            norm_eps=spec.rms_norm_eps,
            attention_scale=scale,
            attention_soft_cap=spec.attention_soft_cap or 0.0,
            logit_soft_cap=spec.logit_soft_cap or 0.0,
            embedding_scale=spec.embedding_scale,
            **{
                name: ctypes.cast(a, ctypes.c_void_p)
                for name, a in zip(("windows", "groups", "pools", "rope_index"), arrays, strict=True)
            },
            rope=(ctypes.c_void_p * 2)(*(table.data_ptr() for table in tables)),
        )
        return config, [*arrays, *tables]


class _Placer:
    """Tells the library where in an image everything lies."""

    def __init__(self, decoder: CpuDecoder, image: torch.Tensor, entries: Sequence[ImageEntry]) -> None:
        assert image.dtype == torch.uint8
        assert image.dim() == 1
        assert image.is_contiguous()
        assert image.data_ptr() % LINE == 0
        self._decoder, self._image = decoder, image
        self._library, self._handle, self._spec = decoder._library, decoder._open(), decoder.spec
        self._entries = {entry.name: entry for entry in entries}

    def place(self) -> None:
        spec, maps = self._spec, RowMaps(self._spec)
        present = {"input_norm", "mlp_norm"}
        present |= {"post_attention_norm", "post_mlp_norm"} if spec.post_norms else set()
        present |= {"q_norm", "k_norm"} if spec.qk_norm else set()
        present |= {"qkv_bias"} if spec.qkv_bias else set()
        rows = {"q_norm": maps.head, "k_norm": maps.head, "qkv_bias": maps.qkv}
        for layer in range(spec.num_layers):
            at = f"layers.{layer}."
            for role, name in enumerate(_VECTORS):
                if name in present:
                    self._vector(role, layer, at + name, len(rows.get(name, maps.hidden)))
            for role, (name, n, k) in enumerate(
                (
                    ("qkv", maps.qkv, maps.sizes["hidden"]),
                    ("o", maps.hidden, maps.sizes["attention"]),
                    ("gate_up", maps.gate_up, maps.sizes["hidden"]),
                    ("down", maps.hidden, maps.sizes["mlp"]),
                )
            ):
                self._matrix(role, layer, at + name, len(n), k)
        self._vector(_LAST_NORM, 0, "final_norm", len(maps.hidden))
        self._matrix(_HEAD, 0, "head", len(maps.vocab), spec.hidden_size)
        if "embedding" in self._entries:
            self._matrix(_EMBEDDING, 0, "embedding", len(maps.vocab), spec.hidden_size)
        elif not spec.tie_embeddings:
            raise self._damaged("embedding", "is not in the image")

    def _vector(self, role: int, layer: int, name: str, length: int) -> None:
        address = self._address(name, 4 * length)
        self._library.tandem_decoder_place_vector(self._handle, role, layer, address)

    def _matrix(self, role: int, layer: int, name: str, rows: int, inputs: int) -> None:
        entry = self._entries.get(name)
        form = parse_kind(entry) if entry is not None else Form()
        panel = self._library.tandem_panel_bytes(ctypes.byref(form), inputs) if entry is not None else 0
        address = self._address(name, rows // PANEL * int(panel))
        self._library.tandem_decoder_place_matrix(self._handle, role, layer, ctypes.byref(form), address)

    def _address(self, name: str, size_bytes: int) -> int:
        entry = self._entries.get(name)
        if entry is None:
            raise self._damaged(name, "is not in the image")
        if entry.size_bytes != size_bytes:
            raise self._damaged(name, f"has {entry.size_bytes} bytes; the configuration says {size_bytes}")
        if entry.offset < 0 or entry.offset % LINE or entry.offset + size_bytes > self._image.numel():
            raise self._damaged(name, f"lies at byte {entry.offset}, where the image has no room for it")
        return self._image.data_ptr() + entry.offset

    def _damaged(self, name: str, what: str) -> ModelDamaged:
        return ModelDamaged(f"{name} {what}. Build the engine again.")


class _Loader:
    """Reads a checkpoint's tensors and has them packed. Holds one layer's tensors at a time."""

    def __init__(self, decoder: CpuDecoder, read: ReadTensor, dtype: torch.dtype) -> None:
        self._library, self._handle, self._spec = decoder._library, decoder._open(), decoder.spec
        self._read, self._dtype = read, dtype

    def load(self) -> None:
        spec = self._spec
        for layer in range(spec.num_layers):
            self._load_layer(layer, f"model.layers.{layer}.")
        embedding = (spec.vocab_size, spec.hidden_size)
        head = "model.embed_tokens.weight" if spec.tie_embeddings else "lm_head.weight"
        self._matrix(_HEAD, 0, [(head, embedding)])
        if not spec.tie_embeddings:
            self._matrix(_EMBEDDING, 0, [("model.embed_tokens.weight", embedding)])
        self._norm(_LAST_NORM, 0, "model.norm.weight", spec.hidden_size)

    def _load_layer(self, layer: int, prefix: str) -> None:
        spec, h = self._spec, self._spec.hidden_size
        q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        outputs = (("q_proj", q), ("k_proj", kv), ("v_proj", kv))
        self._matrix(_QKV, layer, [(f"{attention}{name}.weight", (n, h)) for name, n in outputs])
        self._matrix(_OUTPUT, layer, [(f"{attention}o_proj.weight", (h, q))])
        self._matrix(
            _GATE_UP, layer, [(f"{mlp}{name}.weight", (spec.intermediate_size, h)) for name in ("gate_proj", "up_proj")]
        )
        self._matrix(_DOWN, layer, [(f"{mlp}down_proj.weight", (h, spec.intermediate_size))])
        if spec.qkv_bias:
            self._vectors(_BIAS, layer, [self._float(f"{attention}{name}.bias", (n,)) for name, n in outputs])
        if spec.qk_norm:
            self._norm(_Q_NORM, layer, f"{attention}q_norm.weight", spec.head_dim)
            self._norm(_K_NORM, layer, f"{attention}k_norm.weight", spec.head_dim)
        self._norm(_INPUT_NORM, layer, f"{prefix}input_layernorm.weight", h)
        if spec.post_norms:
            self._norm(_POST_ATTENTION, layer, f"{prefix}post_attention_layernorm.weight", h)
            self._norm(_MLP_NORM, layer, f"{prefix}pre_feedforward_layernorm.weight", h)
            self._norm(_POST_MLP, layer, f"{prefix}post_feedforward_layernorm.weight", h)
        else:
            self._norm(_MLP_NORM, layer, f"{prefix}post_attention_layernorm.weight", h)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = self._read(name, dtype)
        if tuple(tensor.shape) != shape:
            raise ModelDamaged(f"{name} has the shape {list(tensor.shape)}; the configuration says {list(shape)}.")
        return tensor.contiguous()

    def _matrix(self, role: int, layer: int, sources: list[tuple[str, tuple[int, ...]]]) -> None:
        tensors = [self._tensor(name, shape, self._dtype) for name, shape in sources]
        dtype = tensors[0].dtype
        if dtype not in (torch.float32, torch.bfloat16, torch.float16) or any(t.dtype != dtype for t in tensors):
            tensors, dtype = [t.float() for t in tensors], torch.float32
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        self._library.tandem_decoder_load_matrix(
            self._handle, role, layer, pointers, DTYPES[str(dtype).removeprefix("torch.")]
        )

    def _float(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._tensor(name, shape, torch.float32).float()

    def _norm(self, role: int, layer: int, name: str, size: int) -> None:
        weight = self._float(name, (size,))
        self._vectors(role, layer, [weight + 1.0 if self._spec.norm_plus_one else weight])

    def _vectors(self, role: int, layer: int, tensors: list[torch.Tensor]) -> None:
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        self._library.tandem_decoder_load_vector(self._handle, role, layer, pointers)


def check_supported(spec: ModelSpec, block_size: int) -> None:
    """Raises ModelUnsupported for what the kernels don't have."""
    if spec.head_dim % 2 or spec.head_dim > MAX_HEAD_DIM:
        raise ModelUnsupported(
            f"Heads of {spec.head_dim} values; the CPU kernels take even sizes up to {MAX_HEAD_DIM}."
        )
    if spec.num_heads % spec.num_kv_heads:
        raise ModelUnsupported(f"{spec.num_heads} heads can't share {spec.num_kv_heads} KV heads evenly.")
    assert block_size & (block_size - 1) == 0
    assert 1 <= block_size <= 256


def rope_table(theta: float, scaling: RopeScaling | None, head_dim: int, length: int) -> torch.Tensor:
    """float32 [length, head_dim]: by position, the cosines of its angles, then the sines."""
    angle = torch.arange(length).float()[:, None] * rope_frequencies(head_dim, theta, scaling)[None, :]
    return torch.cat([angle.cos(), angle.sin()], dim=1).contiguous()


def _in_huge_pages(image: torch.Tensor) -> torch.Tensor:
    # Private: what is shared gets no huge pages.
    memory = mmap.mmap(-1, image.numel() + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + image.numel()].copy_(image)


def _int32(tensor: torch.Tensor) -> int:
    assert tensor.dtype == torch.int32
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _float32(tensor: torch.Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
