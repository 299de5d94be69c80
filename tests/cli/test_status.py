"""`exogate status` asks the running gateway how it is."""

import json
import os
import signal
from itertools import islice
from pathlib import Path

from tests.cli.conftest import Shell
from tests.fakes.commands import commands


def test_a_gateway_that_is_ready_says_so(shell: Shell) -> None:
    ran = shell("status")

    assert ran.code == 0
    assert "ready" in ran.out
    assert "demo, second" in ran.out
    assert "plugins" in ran.out
    assert shell("--json", "status").json["ready"] is True


def test_a_watched_status_is_shown_again_until_ctrl_c(shell: Shell) -> None:
    words = ["--json", "--config", str(shell.config), "status", "--watch"]
    variables = {"HOME": str(shell.config.parent), "PATH": os.defpath}
    with Path(os.devnull).open("w+b") as nothing:
        watching = commands().start(words, env=variables, err=nothing)
    assert watching.stdout is not None

    shown = [json.loads(line) for line in islice(filter(bytes.strip, watching.stdout), 2)]
    watching.send_signal(signal.SIGINT)
    code = watching.wait(20)
    watching.stdout.close()

    assert shown[0]["uptime_s"] < shown[1]["uptime_s"]
    assert code == 0
