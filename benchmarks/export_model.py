"""Write a model as a Hugging Face folder in bf16, for engines that read nothing else. Argument: the folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    checkpoint = open_checkpoint(resolve(sys.argv[2] if len(sys.argv) > 2 else "smollm2-135m"))
    spec = checkpoint.spec
    assert spec.family == "llama", "only the Llama family is written here"
    tensors = {name: checkpoint.read(name, torch.bfloat16) for name in sorted(checkpoint.names())}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": round(spec.rms_norm_eps, 9),
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tie_embeddings,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": spec.eos_token_ids[0],
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }
    (target / "config.json").write_text(json.dumps(config, indent=2))
    print(target)


if __name__ == "__main__":
    main()
