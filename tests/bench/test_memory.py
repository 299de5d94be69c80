"""The smallest run of the benchmark of facts measures what it has to."""

import json
import subprocess
import sys
from pathlib import Path


def test_every_figure_is_held_against_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.memory", "--micro", "--json", str(file)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    limits = [figure["limit"] for figure in json.loads(file.read_text())]
    assert limits == [1.0, 1.0, None, None, 200.0, None] + [1.5] * 5
