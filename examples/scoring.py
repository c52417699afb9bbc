"""Score texts without generating: which of two endings does the model find likelier?

Run: .venv/bin/python examples/scoring.py
"""

from __future__ import annotations

from tandem import LLM, SamplingParams


def main() -> None:
    llm = LLM("smollm2-135m")
    endings = ["The sun rises in the east.", "The sun rises in the fridge."]
    outputs = llm.generate(endings, SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False)
    for text, output in zip(endings, outputs, strict=True):
        scores = [entry.logprob for entry in output.prompt_logprobs or [] if entry is not None]
        print(f"{sum(scores):8.2f}  {text}")


if __name__ == "__main__":
    main()
