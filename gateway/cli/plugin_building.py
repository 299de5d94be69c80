"""Makes a plugin's file from its source, as the [build] of its plugin.toml says."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.cli.plugin_files import ABOUT, WASM, BadPlugin, Build, noted, read_about, replace_file
from gateway.sandbox.componentize import component_from_core

STDERR = 2  # results alone go to stdout


def built(folder: Path, environment: Mapping[str, str]) -> bytes:
    """Runs the command there and gives what has come out; nothing is kept. Raises BadPlugin.

    Whatever it says goes to stderr.
    """
    about = read_about(folder)
    if about.build is None:
        raise BadPlugin(
            f"{folder / ABOUT} says nothing of how it is built: it has no [build] command"
        )
    made = folder / (about.build.core or WASM)
    code = _run(about.build, folder, environment)
    if code != 0:
        raise BadPlugin(f"the build failed (exit {code}){_needs(about.build)}")
    if not made.is_file():
        raise BadPlugin(f"the build ended without making {made}")
    wasm = made.read_bytes()
    return component_from_core(wasm, about.kind) if about.build.core else wasm


def keep(folder: Path, wasm: bytes) -> str:
    """Writes tool.wasm, then its sha256 into plugin.toml, each whole or not at all; gives that."""
    sha256 = hashlib.sha256(wasm).hexdigest()
    replace_file(folder / WASM, wasm)
    about = folder / ABOUT
    replace_file(about, noted(about.read_text(encoding="utf-8"), sha256).encode())
    return sha256


def _run(build: Build, folder: Path, environment: Mapping[str, str]) -> int:
    """The command is found as in a terminal; Python's packages also beside this program."""
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join(filter(None, (environment.get("PATH"), here)))
    done = subprocess.run(
        build.command,
        shell=True,  # it is the author's own command, written for a shell
        cwd=folder,
        env={**environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=STDERR,
        check=False,
    )
    return done.returncode


def _needs(build: Build) -> str:
    """What has to be there, and how to get what Python's package index has."""
    if not build.needs:
        return ""
    said = f"; it needs {', '.join(build.needs)}"
    packages = [need for need in build.needs if "==" in need]
    return f"{said}: python -m pip install {' '.join(packages)}" if packages else said
