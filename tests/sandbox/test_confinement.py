"""A process that confined itself can do what it needs and nothing that would reach out."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import prisoner

ROOT = Path(__file__).parent.parent.parent
NEEDED = {"thread", "signal to itself", "own limits", "the old socket"}
NEEDED |= {"read what is readable", "list what is readable", "write what is writable"}
# What the filter on system calls refuses; all the rest is refused by the one on files.
CALLS = {"socket", "unix socket", "socketpair", "fork", "exec", "a program", "kill", "thread kill"}
CALLS |= {"the parent's limits", "chmod", "chown", "mount", "a new namespace", "memory of another"}
EPERM, ENOENT = "errno 1", "errno 2"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("prison")
    (folder / "outside").write_text("x")
    for name in ("readable", "writable"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
    command = [
        sys.executable,
        prisoner.__file__,
        str(folder / "readable"),
        str(folder / "writable"),
    ]
    environment = {"PYTHONPATH": str(ROOT), "CANARY": "x"}
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_what_a_worker_needs_still_works(told: dict[str, Any]) -> None:
    assert {name: told["done"][name] for name in NEEDED} == dict.fromkeys(NEEDED, "done")


@pytest.mark.requirement("S-003-Plugin-13")
def test_no_system_call_reaches_out(told: dict[str, Any]) -> None:
    if not told["kept_in"]["seccomp"]:
        pytest.skip("this kernel has no seccomp, or this machine's calls are not known")

    assert {name: told["done"][name] for name in CALLS} == dict.fromkeys(CALLS, EPERM)


@pytest.mark.requirement("S-003-Plugin-13")
def test_no_other_file_can_be_opened(told: dict[str, Any]) -> None:
    if not told["kept_in"]["landlock"]:
        pytest.skip("this kernel has no Landlock")

    files = told["done"].keys() - NEEDED - CALLS
    assert len(files) >= 10
    assert {name for name in files if told["done"][name] == "done"} == set()


def test_what_holds_is_not_claimed_falsely(told: dict[str, Any]) -> None:
    """On a kernel without either of them it says so."""
    done = told["done"]

    assert told["kept_in"]["seccomp"] is (done["socket"] == EPERM)
    assert (told["kept_in"]["landlock"] > 0) is (done["/etc/passwd"] != "done")


@pytest.mark.skipif(sys.platform != "linux", reason="only its kernel can")
def test_a_child_without_a_socket_ends_with_its_parent() -> None:
    child = (
        "import sys, time; from gateway.sandbox.confinement import die_with_parent;"
        "die_with_parent(); sys.stderr.write('x'); sys.stderr.flush(); time.sleep(60)"
    )
    parent = (
        "import os, signal, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stderr=subprocess.PIPE);"
        "child.stderr.read(1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    # Its output ends when the last process that has it does.
    ran = subprocess.run(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, check=False, timeout=20
    )

    assert ran.returncode == -signal.SIGKILL
