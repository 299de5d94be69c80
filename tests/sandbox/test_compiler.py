"""Broken variants of guests by the hundred: refused or run, and the process lives on."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.wat import ECHO, RELAY, kept
from tests.forms import is_long
from tests.sandbox import mutants

ROOT = Path(__file__).parent.parent.parent
SHIPPED = sorted((ROOT / "plugins").glob("*/tool.wasm"), key=lambda path: path.stat().st_size)[:1]
COUNT = 400 if is_long() else 160


@pytest.mark.requirement("S-003-Plugin-08")
@pytest.mark.parametrize("seed", [1, 2])
def test_no_broken_module_ends_the_process(tmp_path: Path, seed: int) -> None:
    guests = [kept(tmp_path, "echo", ECHO), kept(tmp_path, "relay", RELAY), *SHIPPED]
    given = [str(tmp_path), str(seed), str(COUNT), *map(str, guests)]

    command = [sys.executable, mutants.__file__, *given]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(ROOT)}
    )

    assert ran.returncode == 0, f"after {ran.stdout[-40:]!r}: {ran.stderr[-2000:]}"
    ends = Counter(line.split()[1] for line in ran.stdout.splitlines())
    assert ends.total() == COUNT
    assert COUNT // 4 < ends["refused"] < COUNT
