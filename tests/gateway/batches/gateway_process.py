"""A gateway's batch part as a process of its own, to be killed. It writes down each line that it begins.

python -m tests.gateway.batches.gateway_process ADDRESS DATA_DIR LOG HOW_MANY: answers so many lines, then hangs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tandem.config.gateway_store import BatchesConfig, StoreConfig
from tandem.gateway.batches.lines import LineAnswer, LineRequest
from tests.gateway.lines import Engine, answer
from tests.gateway.whole_store import Store


async def main(address: str, data_dir: str, log: Path, how_many: int) -> None:
    store = Store(address, StoreConfig(data_dir=data_dir, lease_ttl_s=0.3), BatchesConfig(poll_s=0.05))
    num_begun = 0

    async def script(line: LineRequest) -> LineAnswer:
        nonlocal num_begun
        num_begun += 1
        with log.open("a") as file:
            file.write(f"{line.custom_id}\n")
        if num_begun > how_many:
            await asyncio.Event().wait()
        return answer(line)

    await store.start(Engine(script))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
