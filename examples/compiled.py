"""Offline generation from an engine file: the same interface, another runner.

Build the file first, which takes some minutes and happens once:

    .venv/bin/tandem build smollm2-135m -o smollm2.engine --precision as-stored
    .venv/bin/python examples/compiled.py smollm2.engine
"""

from __future__ import annotations

import sys

from tandem import LLM, SamplingParams


def main() -> None:
    llm = LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2.engine", kv_memory_gib=0.3)
    prompts = ["The capital of France is", "Water boils at", "A good way to learn a language is"]
    for output in llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24, stop=("\n",))):
        answer = output.outputs[0]
        print(f"{output.prompt!r} -> {answer.text!r} ({answer.finish_reason})")


if __name__ == "__main__":
    main()
