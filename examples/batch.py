"""A batch through OpenAI's client: upload requests, wait, read the answers.

Start `tandem serve` first (or a gateway, see gateway.toml); then run: .venv/bin/python examples/batch.py
"""

from __future__ import annotations

import json
import os
import time

from openai import OpenAI

MODEL = os.environ.get("TANDEM_MODEL", "smollm2-135m")
COUNTRIES = ("France", "Italy", "Japan", "Norway")
OVER = ("completed", "failed", "expired", "cancelled")


def main() -> None:
    url = os.environ.get("TANDEM_URL", "http://127.0.0.1:8000")
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TANDEM_API_KEY", "none"))
    lines = "\n".join(json.dumps(request(country)) for country in COUNTRIES)
    file = client.files.create(file=("capitals.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"run": "capitals"}
    )
    while batch.status not in OVER:
        time.sleep(0.5)
        batch = client.batches.retrieve(batch.id)
        if batch.request_counts:
            print(f"{batch.status}: {batch.request_counts.completed} of {batch.request_counts.total}")
    for error in (batch.errors.data or []) if batch.errors else []:
        print(f"line {error.line}: {error.message}")
    for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
        for line in client.files.content(file_id).text.splitlines():
            show(json.loads(line))


def request(country: str) -> dict[str, object]:
    """One line of the input file."""
    question = {"role": "user", "content": f"What is the capital of {country}? Answer in one sentence."}
    body = {"model": MODEL, "messages": [question], "max_tokens": 32, "temperature": 0}
    return {"custom_id": country, "method": "POST", "url": "/v1/chat/completions", "body": body}


def show(result: dict[str, object]) -> None:
    """One line of the output file or of the error file."""
    response = result["response"]
    if isinstance(response, dict) and response["status_code"] == 200:
        print(f"{result['custom_id']}: {response['body']['choices'][0]['message']['content']}")
    else:
        print(f"{result['custom_id']}: {result['error'] or response}")


if __name__ == "__main__":
    main()
