"""The smallest run of the benchmark of packing measures what it has to."""

import json
import subprocess
import sys
from pathlib import Path


def test_every_figure_is_held_against_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.packing", "--micro", "--json", str(file)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert [figure["limit"] for figure in figures] == [5.0, 1.5, 5.0, 1.5, 200.0]
    assert all(figure["verdict"] for figure in figures)
