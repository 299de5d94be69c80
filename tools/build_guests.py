"""Builds bundled plugins and examples from their source by their plugin.toml.

python tools/build_guests.py NAME...          writes tool.wasm, and its sha256 into plugin.toml
python tools/build_guests.py --check NAME...  fails if the result differs from the repository
--env DIR   a virtual environment with the toolchain (what `needs` names); else the one of PATH
--out DIR   writes DIR/NAME.wasm and does not change the repository

NAME is a directory of plugins/ or wasm-examples/. Its npm packages come from the lock file in tools/guests
that names the same packages, each checked against its digest; no other package is fetched.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from gateway.cli.plugin import run_build, save_build
from gateway.cli.plugin_files import ABOUT, WASM

ROOT = Path(__file__).parent.parent
LOCKS = Path(__file__).parent / "guests"
SHELVES = (ROOT / "plugins", ROOT / "wasm-examples")


def directory_of(name: str) -> Path:
    for shelf in SHELVES:
        if (shelf / name / ABOUT).is_file():
            return shelf / name
    sys.exit(f"{name}: there is no plugins/{name} and no wasm-examples/{name} with a {ABOUT}")


def lock_of(directory: Path) -> Path | None:
    """Returns the directory of the lock file for a build; None if the build does not use npm."""
    build = tomllib.loads((directory / ABOUT).read_text(encoding="utf-8"))["build"]
    needs = {need for need in build.get("needs", ()) if "@" in need}
    if not needs:
        return None
    for package in LOCKS.glob("*/package.json"):
        locked = json.loads(package.read_text(encoding="utf-8"))["dependencies"]
        if {f"{name}@{version}" for name, version in locked.items()} == needs:
            return package.parent
    sys.exit(f"{directory.name}: no lock file in tools/guests has {', '.join(sorted(needs))}")


def install(lock: Path, folder: Path, environment: dict[str, str]) -> None:
    """Installs the packages of the lock file. Afterwards npm can read the index of packages, if its cache is
    empty, but cannot install any."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(lock / name, folder)
    words = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
    subprocess.run(words, cwd=folder, env=environment, check=True)
    environment["npm_config_dry_run"] = "true"


def built_aside(directory: Path, env: Path | None) -> bytes:
    """Builds in a copy, with the shared files of other guests, so that only the result is copied back."""
    environment = dict(os.environ)  # noqa: TID251  # reason: a build tool hands its own on
    if env is not None:
        environment["PATH"] = f"{env.resolve() / 'bin'}{os.pathsep}{environment['PATH']}"
    with tempfile.TemporaryDirectory() as scratch:
        shelf = Path(scratch) / directory.parent.name
        leave = shutil.ignore_patterns(WASM, "core.wasm", "node_modules", "__pycache__")
        shutil.copytree(directory.parent, shelf, ignore=leave)
        lock = lock_of(directory)
        if lock is not None:
            install(lock, shelf / directory.name, environment)
        return run_build(shelf / directory.name, environment)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("names", nargs="+", metavar="NAME")
    options.add_argument("--env", type=Path)
    options.add_argument("--check", action="store_true")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    different = 0
    for name in given.names:
        directory = directory_of(name)
        made = built_aside(directory, given.env)
        if given.check:
            same = made == (directory / WASM).read_bytes()
            different += not same
            print(f"{name}: {'the same bytes' if same else 'DIFFERENT bytes'}")
        elif given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{name}.wasm").write_bytes(made)
        else:
            save_build(directory, made)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
