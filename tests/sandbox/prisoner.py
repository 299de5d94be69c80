"""A child process that confines itself and then tries what must not work; says what did, as JSON.

`python prisoner.py READABLE WRITABLE`: each is a folder, or "" for none.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gateway.sandbox.confinement import confine


def thread() -> None:
    ran: list[int] = []
    one = threading.Thread(target=ran.append, args=(1,))
    one.start()
    one.join()
    assert ran


def told(code: int) -> None:
    if code < 0:
        raise OSError(ctypes.get_errno(), "refused")


def system_call(number: int, *arguments: int) -> None:
    told(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def prlimit(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE)


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def tries(
    readable: str, writable: str, parent: int, old: socket.socket
) -> dict[str, Callable[[], object]]:
    here = Path(readable or "/nowhere")
    there = Path(writable or "/nowhere")
    return {
        "thread": thread,
        "signal to itself": lambda: signal.raise_signal(signal.SIGURG),
        "own limits": lambda: prlimit(0),
        "the old socket": lambda: old.send(b"x"),
        "read what is readable": (here / "file").read_bytes,
        "list what is readable": lambda: list(here.iterdir()),
        "write what is readable": lambda: (here / "new").write_bytes(b"x"),
        "write what is writable": lambda: (there / "new").write_bytes(b"x"),
        "a link where it may write": lambda: Path(there / "link").symlink_to("/etc/passwd"),
        "a folder where it may write": (there / "folder").mkdir,
        "/etc/passwd": Path("/etc/passwd").read_bytes,
        "list /": lambda: list(Path("/").iterdir()),
        "its own environment": Path("/proc/self/environ").read_bytes,
        "the parent's environment": Path(f"/proc/{parent}/environ").read_bytes,
        "the parent's memory": lambda: Path(f"/proc/{parent}/mem").open("rb").close(),
        "up and out": (here / ".." / "outside").read_bytes,
        "remove": (here / "file").unlink,
        "socket": socket.socket,
        "unix socket": lambda: socket.socket(socket.AF_UNIX),
        "socketpair": socket.socketpair,
        "fork": fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "a program": lambda: subprocess.run(["/bin/true"], check=True),
        "kill": lambda: os.kill(parent, 0),
        "thread kill": lambda: system_call(
            {"x86_64": 234}.get(os.uname().machine, 131), parent, parent, 0
        ),
        "the parent's limits": lambda: prlimit(parent),
        "chmod": lambda: Path(here / "file").chmod(0o777),
        "chown": lambda: os.chown(here / "file", os.getuid(), os.getgid()),
        "mount": lambda: told(
            ctypes.CDLL(None, use_errno=True).mount(b"none", b"/", b"tmpfs", 0, None)
        ),
        "a new namespace": lambda: told(ctypes.CDLL(None, use_errno=True).unshare(0x10000000)),
        "memory of another": lambda: system_call(
            {"x86_64": 310}.get(os.uname().machine, 270), parent, 0, 0, 0, 0, 0
        ),
    }


def attempt(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return f"errno {error.errno}"
    return "done"


def main() -> None:
    readable, writable = sys.argv[1:]
    parent, (old, _other) = os.getppid(), socket.socketpair()
    kept_in = confine(
        readable=[Path(readable)] if readable else [], writable=[Path(writable)] if writable else []
    )
    done = {name: attempt(act) for name, act in tries(readable, writable, parent, old).items()}
    sys.stdout.write(json.dumps({"kept_in": asdict(kept_in), "done": done}))


if __name__ == "__main__":
    main()
