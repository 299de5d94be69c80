"""The smallest run of the ledger's benchmark measures what it has to."""

import json
import subprocess
import sys
from pathlib import Path


def test_every_figure_is_held_against_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.ledger", "--micro", "--json", str(file)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    limits = {figure["name"]: figure["limit"] for figure in json.loads(file.read_text())}
    assert limits["reserve and settle p50"] == 0.3
    assert limits["metering adds to a message p50"] == 0.3
    unlimited = [name for name, limit in limits.items() if limit is None]
    assert unlimited == ["a message p50, against no meter", "reserve and settle p99"]
    assert len(limits) == 16
