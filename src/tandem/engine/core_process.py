"""The core's process: reads requests from a socket, steps the engine, writes outputs back.

Started by `core_client.CoreProcess` as `python -m tandem.engine.core_process FD`; the first frame is the configuration.
It ends when the front is gone, when told to drain and done, or with an error that it reports first.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback

import msgspec

from tandem.config.engine import EngineConfig
from tandem.core.clock import SystemClock
from tandem.core.errors import TandemError
from tandem.engine.channel import Channel
from tandem.engine.core import EngineCore
from tandem.engine.messages import (
    Abort,
    CacheChanged,
    Drain,
    Failed,
    NewRequest,
    StepReport,
    WatchCache,
    from_core_encoder,
    to_core_decoder,
)
from tandem.protocol.state import KVEventBatch

HEARTBEAT_S = 0.5
"""An idle core gives a sign of life this often."""


class CoreLoop:
    """Takes what the front sent, makes a step, sends what came out, until told to end."""

    def __init__(self, core: EngineCore, channel: Channel) -> None:
        self._core = core
        self._channel = channel
        self._draining = False

    def run(self) -> None:
        while not (self._draining and not self._core.has_work):
            wait_s = 0.0 if self._core.has_work else HEARTBEAT_S
            for payload in self._channel.receive(wait_s):
                self._take(payload)
            outputs = self._core.step()
            self._channel.send(from_core_encoder.encode(StepReport(outputs, self._core.stats())))
            if events := self._core.take_cache_events():
                self._channel.send(from_core_encoder.encode(CacheChanged(KVEventBatch(events=events))))

    def _take(self, payload: bytes) -> None:
        message = to_core_decoder.decode(payload)
        if isinstance(message, NewRequest):
            self._core.add(message)
        elif isinstance(message, Abort):
            for request_id in message.request_ids:
                self._core.abort(request_id)
        elif isinstance(message, Drain):
            self._draining = True
        elif isinstance(message, WatchCache):
            self._core.watch_cache(message.is_on)


def _serve(channel: Channel) -> None:
    # Heavy imports only now: a wrong flag should fail before torch is loaded.
    from tandem.engine.build import build_engine
    from tandem.engine.loading.opening import open_checkpoint
    from tandem.engine.loading.sources import resolve

    config = msgspec.msgpack.decode(_first_frame(channel), type=EngineConfig)
    built = build_engine(config, open_checkpoint(resolve(config.model, offline=True)), SystemClock())
    # What lives now lives for ever: keep the collector from walking over it in mid-step.
    gc.collect()
    gc.freeze()
    channel.send(from_core_encoder.encode(built.ready))
    CoreLoop(built.core, channel).run()


def _first_frame(channel: Channel) -> bytes:
    while not (payloads := channel.receive(60.0)):
        pass
    return payloads[0]


def _die_with_parent() -> None:
    """Have the kernel end this process when the front's dies, even if it is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> int:
    # Ctrl-C reaches the whole process group; the front decides how to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        _serve(channel)
    except EOFError:
        return 0
    except TandemError as error:
        channel.send(from_core_encoder.encode(Failed(error.message, type(error).__name__)))
        return 1
    except BaseException as error:
        traceback.print_exc()
        channel.send(from_core_encoder.encode(Failed(f"{type(error).__name__}: {error}", "EngineFailed")))
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
