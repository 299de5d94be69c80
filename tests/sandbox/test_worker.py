"""A worker holds no secret, passes on only what may be, and goes when the gateway goes."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.sandbox.protocol import Bounds, Status
from gateway.sandbox.worker import check_answer, run_guest
from tests.fakes.guests import call_of
from tests.sandbox import leaving, secretive

ROOT = Path(__file__).parent.parent.parent
BOUNDS = Bounds(memory_bytes=1 << 20, fuel=1, output_bytes=1024)
needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")


@needs_proc
def test_no_secret_ever_is_where_guests_run(cache: Path, tmp_path: Path) -> None:
    canary = "".join(("sk-", "c4n4ry", "-0123456789"))
    command = [sys.executable, secretive.__file__, str(cache), str(tmp_path)]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), secretive.NAME: canary},
    )
    assert ran.returncode == 0, ran.stderr

    told = json.loads(ran.stdout)
    clean = {"environment": False, "memory": False, "mark": True}
    assert told["sent"] is True
    assert (told["during"], told["after"]) == (clean, clean)
    assert secretive.MARK in told["answer"]
    assert canary not in ran.stdout + ran.stderr


@needs_proc
def test_a_worker_goes_when_the_gateway_is_killed(cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, leaving.__file__, str(cache), str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment) as gateway:
        assert gateway.stdout is not None
        worker = int(gateway.stdout.readline())
        # The end of the worker is seen without asking again and again.
        watched = os.pidfd_open(worker)
        gateway.kill()
        assert ends(watched)


def ends(pidfd: int) -> bool:
    ready, _, _ = select.select([pidfd], [], [], 5)
    os.close(pidfd)
    return bool(ready)


@pytest.mark.requirement("S-003-Plugin-05")
@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        ('{"a": [1, null, "x"]}', ("ok", '{"a": [1, null, "x"]}')),
        ('"text"', ("ok", "text")),
        ('"a\\nb"', ("ok", "a\nb")),
        ('""', ("ok", "")),
        ("12", ("ok", "12")),
        ("", ("invalid", "its answer is not valid JSON")),
        ("text", ("invalid", "its answer is not valid JSON")),
        ('{"a": 1} {"b": 2}', ("invalid", "its answer is not valid JSON")),
        ("-Infinity", ("invalid", "its answer is not valid JSON")),
        ('"\\ud800"', ("invalid", "its answer is not valid JSON")),
        ("[" * 1000, ("invalid", "its answer is not valid JSON")),
        ("1" * 1024, ("ok", "1" * 1024)),
        ("1" * 1025, ("output_too_large", "its output is larger than 1 KiB")),
        ('"' + "é" * 512 + '"', ("output_too_large", "its output is larger than 1 KiB")),
    ],
)
def test_an_answer_is_json_within_its_bounds(answer: str, passed: tuple[Status, str]) -> None:
    assert check_answer("handle-tool-call", "ok", answer, BOUNDS) == passed


def test_only_a_tools_answer_has_to_be_json() -> None:
    assert check_answer("describe", "ok", "words", BOUNDS) == ("ok", "words")
    assert check_answer("handle-tool-call", "err", "words", BOUNDS) == ("err", "words")
    assert check_answer("handle-tool-call", "err", "x" * 1025, BOUNDS)[0] == "output_too_large"


class Broken:
    def run(self, *_: object) -> tuple[Status, str]:
        raise MemoryError("the worker's own words")


def test_a_guest_that_breaks_its_runner_costs_its_own_call() -> None:
    assert run_guest(call_of([]), Broken(), "handle-tool-call", "x") == ("trap", "it crashed")
