"""A web server on 127.0.0.1 that can be told to misbehave, one request at a time."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tandem.engine.loading.catalog import Wheel


@dataclass(frozen=True)
class Fault:
    """What is wrong with one answer."""

    status: int | None = None
    cut_at: int | None = None
    """Bytes of the body that are sent before the connection ends."""
    ignore_range: bool = False
    no_length: bool = False
    body: bytes | None = None
    redirect: str | None = None


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    num_bytes: int = 0


@dataclass
class Loopback:
    """`files`: path → content type and body. `faults`: path → used up one a request."""

    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    seen: list[Seen] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, path: str, body: bytes, content_type: str = "application/octet-stream") -> str:
        self.files[path] = (content_type, body)
        return self.url + path

    def add_wheel(self, package: str, body: bytes, member: str) -> Wheel:
        """Serve a wheel, listed as an old index does it: HTML and a relative link."""
        filename = f"{package}-1.0-py3-none-any.whl"
        self.add(f"/files/{filename}", body)
        self.add(f"/simple/{package}/", f'<a href="../../files/{filename}#sha256=0">x</a>'.encode(), "text/html")
        return Wheel(package, filename, hashlib.sha256(body).hexdigest(), len(body), member)

    def requests(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]


class Handler(BaseHTTPRequestHandler):
    site: Loopback

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        seen = Seen(self.path, {key.lower(): value for key, value in self.headers.items()})
        self.site.seen.append(seen)
        faults = self.site.faults[self.path]
        fault = faults.pop(0) if faults else Fault()
        if fault.redirect:
            self._head(302, {"Location": fault.redirect, "Content-Length": "0"})
        elif fault.status or self.path not in self.site.files:
            self._head(fault.status or 404, {"Content-Length": "0"})
        else:
            self._send(seen, fault)

    def _send(self, seen: Seen, fault: Fault) -> None:
        content_type, body = self.site.files[self.path]
        body = body if fault.body is None else fault.body
        start = 0 if fault.ignore_range else int(seen.headers.get("range", "bytes=0-")[6:-1])
        headers = {"Content-Type": content_type}
        if start >= len(body) > 0:
            self._head(416, headers)
            return
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        if not fault.no_length:
            headers["Content-Length"] = str(len(body) - start)
        self._head(206 if start else 200, headers)
        sent = body[start : None if fault.cut_at is None else start + fault.cut_at]
        seen.num_bytes = len(sent)
        self.wfile.write(sent)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def start(site: Loopback) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("SiteHandler", (Handler,), {"site": site}))
    server.daemon_threads = True
    site.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server
