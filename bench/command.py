"""The command line of a benchmark that has a quick form."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.marks import Figure, report
from bench.process import other_cores


def run(doc: str | None, base: str, measure: Callable[[bool, Path], Iterable[Figure]]) -> None:
    """Prints the figures of `measure`, which gets the quick flag and a temporary folder."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    args = parser.parse_args()
    print(f"other load: {other_cores():.2f} cores; base: {base}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = list(measure(args.quick, Path(home)))
    report(figures, args.json)
