"""`tandem top`: a gateway, live in the terminal: pools, replicas, queues, tokens a second and cost."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from tandem.core.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_TIMEOUT_S = 5.0
_MILLION = 1_000_000


def register(commands: Commands) -> None:
    parser = commands.add_parser("top", help="watch a gateway", usage="tandem top [URL] [options]", allow_abbrev=False)
    parser.add_argument("url", nargs="?", default=os.environ.get("TANDEM_URL", "http://127.0.0.1:8000"))
    parser.add_argument("--api-key", default=os.environ.get("TANDEM_API_KEY"), metavar="TEXT", help="an admin's key")
    parser.add_argument("--every", type=float, default=1.0, metavar="X", help="seconds between looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="look once and end")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    source = _Source(args.url.rstrip("/"), args.api_key)
    console = Console()
    if args.once:
        console.print(view(source.look()))
        return 0
    with Live(view(source.look()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(args.every)
            live.update(view(source.look()), refresh=True)


class _Source:
    """Asks the gateway; remembers the last counts, for rates."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._last: tuple[float, int] | None = None

    def look(self) -> dict[str, Any]:
        status: dict[str, Any] = self._get("/tandem/gateway")
        usage: dict[str, Any] = self._get("/tandem/usage?group_by=pool")
        now_s = time.monotonic()
        tokens = sum(int(item.get("output_tokens", 0)) for item in usage.get("data", []))
        rate = None
        if self._last is not None and now_s > self._last[0]:
            rate = max(0.0, (tokens - self._last[1]) / (now_s - self._last[0]))
        self._last = (now_s, tokens)
        return {"status": status, "usage": usage, "output_tokens_per_s": rate}

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self._url + path, headers=self._headers), timeout=_TIMEOUT_S
            ) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            hint = {401: " Give an admin's key with --api-key.", 403: " Give an admin's key with --api-key."}
            raise Unavailable(f"{self._url}{path} answers {error.code}.{hint.get(error.code, '')}") from error
        except (OSError, ValueError) as error:
            raise Unavailable(f"No gateway answers at {self._url}: {error}.") from error


def view(seen: dict[str, Any]) -> RenderableType:
    """What is shown."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    status = seen["status"]
    rate = seen["output_tokens_per_s"]
    head = (
        f"running {status['num_running']}   waiting {sum(status['waiting'].values())}"
        f"   output {'-' if rate is None else f'{rate:,.0f}'} tok/s   policy {status['policy']}"
        f"   batches {status['num_batches_active']}   database {'up' if status['is_database_up'] else 'AWAY'}"
    )
    table = Table("pool", "replica", "state", "in flight", "running", "waiting", "KV", "$/M tokens", box=None)
    costs = {item.get("pool"): item for item in seen["usage"].get("data", [])}
    for pool in status["pools"]:
        cost = _cost(costs.get(pool["name"]))
        for replica in pool["replicas"] or [None]:
            table.add_row(*_row(pool, replica, cost))
    return Group(Text(head, style="bold"), table)


def _row(pool: dict[str, Any], replica: dict[str, Any] | None, cost: str) -> list[str]:
    if replica is None:
        return [pool["name"], "-", "none", "", "", "", "", cost]
    kv = replica["kv_usage"]
    return [
        pool["name"],
        replica["id"],
        replica["state"],
        str(replica["in_flight"]),
        _shown(replica["running"]),
        _shown(replica["waiting"]),
        "" if kv is None else f"{kv:.0%}",
        cost,
    ]


def _shown(value: int | None) -> str:
    return "" if value is None else str(value)


def _cost(item: dict[str, Any] | None) -> str:
    """Of a million tokens, prompt and output together."""
    if not item:
        return ""
    tokens = int(item.get("prompt_tokens", 0)) + int(item.get("output_tokens", 0))
    return f"{int(item.get('cost_micros', 0)) / tokens:.3f}" if tokens else ""
