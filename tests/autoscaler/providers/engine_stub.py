"""A tiny HTTP engine for tests of the process provider: python engine_stub.py --port N | --uds PATH [--behaviour …]."""

import argparse
import http.server
import os
import signal
import socketserver
import subprocess
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TANDEM_API_KEY", "EXTRA")
        body = "|".join([cores, *(os.environ.get(name, "-") for name in names)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "client"


class UnixServer(socketserver.UnixStreamServer):
    pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--uds")
    parser.add_argument("--behaviour", default="well")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    if arguments.behaviour == "crash":
        print("no memory for the KV cache", file=sys.stderr, flush=True)
        sys.exit(3)
    if arguments.behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.behaviour == "family":
        # A child in a session of its own, which ignores SIGTERM: only a subreaper finds it.
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
            start_new_session=True,
        )
        print(f"child {child.pid}", flush=True)
    print(f"engine {os.getpid()} {arguments.note}", flush=True)
    if arguments.behaviour == "silent":
        time.sleep(600)
    if arguments.uds:
        UnixServer(arguments.uds, Handler).serve_forever()
    else:
        http.server.ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
