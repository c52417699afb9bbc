"""Runs one engine, and leaves nothing behind. Run as a file of its own, with the standard library only.

    python -I -S launcher.py [--cores 0,1] -- command …

It stands between the gateway and an engine, because no other place survives a `kill -9` of the gateway. Its standard
input is a pipe that only the gateway holds: when that closes, whatever the reason, the engine has to end. (It also
looks who its parent is: a fork of the gateway may hold the pipe open.) As a subreaper it inherits everything that the
engine ever forked, also what left the process group, so "the engine" means all of it.

SIGTERM and SIGINT pass on to the engine alone, which ends as it likes. It ends with the engine's own exit code.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 2.0
"""From SIGTERM to SIGKILL when the gateway is gone: nobody waits for answers any more."""
POLL_S = 0.05
LOOK_S = 1.0


def main(arguments: list[str]) -> int:
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    if options[:1] == ["--cores"]:
        os.sched_setaffinity(0, {int(core) for core in options[1].split(",")})
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    engine = start(command, libc)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda passed, _: send(engine, passed))
    code = wait(engine, wakeup_read)
    if code is None:  # the gateway is gone
        code = end(engine)
    kill_rest()
    return code


def start(command: list[str], libc: ctypes.CDLL) -> int:
    """The engine's process id. It dies with this process, should anybody kill that."""
    parent = os.getpid()
    child = os.fork()
    if child != 0:
        return child
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def wait(engine: int, wakeup: int) -> int | None:
    """The engine's exit code; None when the pipe from the gateway closed first."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    gateway = os.getppid()
    while os.getppid() == gateway:
        if (code := reap(engine)) is not None:
            return code
        for descriptor, _ in poll.poll(LOOK_S * 1000):
            if descriptor == 0 and os.read(0, 4096) == b"":
                return None
            if descriptor == wakeup:
                with contextlib.suppress(BlockingIOError):
                    os.read(wakeup, 4096)
    return None


def reap(engine: int) -> int | None:
    """Collects all that ended. The engine's exit code, if it was among them."""
    code = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if process == 0:
            return code
        if process == engine:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def end(engine: int) -> int:
    send(engine, signal.SIGTERM)
    until_s = time.monotonic() + GRACE_S
    while time.monotonic() < until_s:
        if (code := reap(engine)) is not None:
            return code
        time.sleep(POLL_S)
    return 128 + signal.SIGKILL


def kill_rest() -> None:
    """Until there is nothing below this process: what is killed may have forked a moment before."""
    while rest := descendants():
        for process in rest:
            send(process, signal.SIGKILL)
        reap(-1)
        time.sleep(0.005)


def descendants() -> list[int]:
    """Zombies that aren't ours to collect are left out: their parent is about to be killed, then they are ours."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(name)] = parent_of(name)
    found = [os.getpid()]
    for parent in found:
        found.extend(process for process, of in parents.items() if of == parent)
    return found[1:]


def parent_of(process: str) -> int:
    """The second field after the command, which may have spaces and brackets in it."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def send(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
