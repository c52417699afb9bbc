"""Offline generation: many prompts at once, in order, with a progress bar. Run: .venv/bin/python examples/offline.py"""

from __future__ import annotations

from tandem import LLM, SamplingParams


def main() -> None:
    llm = LLM("smollm2-135m")
    prompts = ["The capital of France is", "Water boils at", "A good way to learn a language is"]
    for output in llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24, stop=("\n",))):
        answer = output.outputs[0]
        print(f"{output.prompt!r} -> {answer.text!r} ({answer.finish_reason})")


if __name__ == "__main__":
    main()
