"""A streamed chat through OpenAI's client.

Start `tandem serve` first; then run: .venv/bin/python examples/chat_client.py
"""

from __future__ import annotations

import os

from openai import OpenAI


def main() -> None:
    url = os.environ.get("TANDEM_URL", "http://127.0.0.1:8000")
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TANDEM_API_KEY", "none"))
    stream = client.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": "Tell me a short story about two horses."}],
        temperature=0.7,
        max_tokens=120,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f"\n\n{chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} generated")


if __name__ == "__main__":
    main()
