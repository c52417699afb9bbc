"""Does the HTTP front keep up? 64 streams through `tandem serve` beside the same work offline, in one run.

    python -m benchmarks.http_streams [--rounds 2]

Workload b both ways: 64 requests at once, prompts as token ids, greedy, end-of-sequence ignored, no prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import time

import aiohttp
import msgspec
from benchmarks.workload import Job, make_workload

SETTINGS = {"max_num_seqs": 64, "enable_prefix_caching": False, "dtype": "bfloat16"}


def offline(jobs: list[Job]) -> float:
    """Output tokens a second, in a process of its own so that it leaves no threads behind."""
    code = (
        "import time; from tandem import LLM, SamplingParams; from benchmarks.workload import make_workload\n"
        f"llm = LLM('smollm2-135m', **{SETTINGS!r}); jobs = make_workload().b\n"
        "ps = [SamplingParams(temperature=0.0, max_tokens=j.num_output, ignore_eos=True) for j in jobs]\n"
        "llm.generate([j.prompt for j in jobs[:8]], ps[:8], use_tqdm=False); t = time.perf_counter()\n"
        "llm.generate([j.prompt for j in jobs], ps, use_tqdm=False)\n"
        "print(sum(j.num_output for j in jobs) / (time.perf_counter() - t))"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


async def stream(session: aiohttp.ClientSession, job: Job) -> int:
    """Read one stream to its end; the number of chunks with text or an end."""
    body = {
        "model": "smollm2-135m",
        "prompt": job.prompt,
        "max_tokens": job.num_output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens = 0
    async with session.post("/v1/completions", data=msgspec.json.encode(body)) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {") and b'"choices":[]' in line:
                tokens = msgspec.json.decode(line[6:])["usage"]["completion_tokens"]
    return tokens


async def over_http(url: str, jobs: list[Job]) -> float:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        await asyncio.gather(*(stream(session, job) for job in jobs[:8]))
        started_s = time.perf_counter()
        tokens = await asyncio.gather(*(stream(session, job) for job in jobs))
        assert sum(tokens) == sum(job.num_output for job in jobs)
        return sum(tokens) / (time.perf_counter() - started_s)


def served(jobs: list[Job]) -> float:
    command = [sys.executable, "-m", "tandem.cli.main", "serve", "--no-gateway", "--port", "0", "--dtype", "bfloat16"]
    command += ["--max-num-seqs", "64", "--no-enable-prefix-caching", "--log-level", "info"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        if found := re.search(r"listening on (\S+)", line):
            url = found[1]
        if line.strip() == "ready":
            break
    try:
        return asyncio.run(over_http(url, jobs))
    finally:
        process.terminate()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    jobs = make_workload().b
    pairs = [(offline(jobs), served(jobs)) for _ in range(args.rounds)]
    alone, http = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"offline {alone:.0f} tok/s, 64 streams over HTTP {http:.0f} tok/s: {http / alone:.1%}")


if __name__ == "__main__":
    main()
