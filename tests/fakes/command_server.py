"""The process that `tests.fakes.commands` forks commands from: it has imported the whole command line."""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
from typing import NoReturn

from gateway.app import shared_store
from gateway.cli import (
    channel,
    channel_testing,
    config,
    configuration,
    conversations,
    doctor,
    link,
    pair,
    plugin,
    plugin_files,
    provider,
    run,
    verbs,
)
from gateway.launcher import main
from gateway.mcp import endpoint, servers
from gateway.outbound import client

LOADED = (
    *(client, servers, endpoint, shared_store),  # which a gateway imports when it needs them
    *(channel, channel_testing, config, configuration, conversations, doctor, link, pair),
    *(plugin, plugin_files, provider, run, verbs),
)


def serve(address: str) -> str:
    """Returns in each child that is to be a command, and never in the parent: the module to run instead."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            caller, _ = listener.accept()
            if os.fork():
                caller.close()
            else:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                return _begin(caller)


def _begin(caller: socket.socket) -> str:
    """Watches a command, whose process alone gets out of here."""
    _, files, _, _ = socket.recv_fds(caller, 1, 3)
    with caller.makefile("rb") as lines:
        command = json.loads(lines.read())
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        if command.get("waits"):
            os.waitpid(pid, os.WUNTRACED)
        caller.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        caller.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    caller.close()
    # As for one that a person begins, also where the tests themselves run in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, (name, file) in enumerate(zip(("stdin", "stdout", "stderr"), files, strict=True)):
        os.dup2(file, number)
        os.close(file)
        old = getattr(sys, name)  # it knows what the file before could do
        kept = {"encoding": old.encoding, "errors": old.errors, "closefd": False}
        new = os.fdopen(number, old.mode, **kept)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    sys.argv[1:] = command["words"]
    os.environ.clear()  # noqa: TID251  # a command is given its own
    os.environ.update(command["env"])  # noqa: TID251
    os.chdir(command["cwd"])
    if command.get("waits"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return str(command.get("module", ""))


def command(module: str) -> NoReturn:
    """Ends as Python does, but for its tidying up, which takes 50 ms after so many imports."""
    code: object = 0
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            main()
    except SystemExit as ended:
        code = ended.code or 0
    if not isinstance(code, int):
        sys.exit(str(code))
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # Python has its own way to say that
    os._exit(code)


if __name__ == "__main__":
    command(serve(sys.argv.pop()))
