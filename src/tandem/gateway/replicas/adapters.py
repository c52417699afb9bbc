"""kind of engine → its adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tandem.config.deployment import EngineKind
from tandem.gateway.replicas.base import Adapter, AdapterOptions
from tandem.gateway.replicas.llama_cpp import LlamaCppAdapter
from tandem.gateway.replicas.openai import OpenAIAdapter
from tandem.gateway.replicas.openvino import OpenVINOAdapter
from tandem.gateway.replicas.sglang import SGLangAdapter
from tandem.gateway.replicas.tandem import TandemAdapter
from tandem.gateway.replicas.tensorrt_llm import TensorRTLLMAdapter
from tandem.gateway.replicas.tgi import TGIAdapter
from tandem.gateway.replicas.vllm import VLLMAdapter

ADAPTERS: Final[Mapping[EngineKind, Callable[[AdapterOptions], Adapter]]] = {
    "tandem": TandemAdapter,
    "vllm": VLLMAdapter,
    "sglang": SGLangAdapter,
    "tensorrt-llm": TensorRTLLMAdapter,
    "tgi": TGIAdapter,
    "llama.cpp": LlamaCppAdapter,
    "openvino": OpenVINOAdapter,
    "openai": OpenAIAdapter,
}


def make_adapter(kind: EngineKind, options: AdapterOptions | None = None) -> Adapter:
    return ADAPTERS[kind](options or AdapterOptions())
