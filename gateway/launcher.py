"""Starts the exogate command after checking that the package `gateway` belongs to exogate.

Other distributions install a top-level package of the same name, and the last one installed silently overwrites the
files of the others. This module is installed as `exogate_launcher`, which is unique, so it always belongs to exogate.
"""

import resource
import sys
from importlib.machinery import PathFinder
from pathlib import Path

MARK = "exogate:"


def foreign_package() -> str | None:
    """Returns a sentence about the wrong package `gateway`, or None if it is ours."""
    spec = PathFinder.find_spec("gateway")
    if spec is None or spec.origin is None:
        return "the package `gateway` is missing; install exogate again"
    if MARK not in Path(spec.origin).read_text(encoding="utf-8", errors="replace")[:200]:
        return (
            f"{spec.origin} belongs to another distribution that installs a package named "
            "`gateway` too; install exogate in a virtual environment of its own"
        )
    return None


def main() -> None:
    problem = foreign_package()
    if problem is not None:
        sys.stderr.write(f"exogate: {problem}\n")
        sys.exit(1)
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        sys.dont_write_bytecode = True  # Python 3.11 leaves truncated files at a size limit
    from gateway.cli.main import main as run  # noqa: PLC0415  # after the check above

    run()
