"""A plugin is built as its plugin.toml says, and what comes out is kept whole."""

import hashlib
import shlex
import sys
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from gateway.app.doctor import BadPlugin
from gateway.cli.plugin import run_build, save_build
from gateway.sandbox.componentize import NotConvertible
from tests.fakes.wat import ECHO, PIECES

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
CORE = bytes(
    wat2wasm(
        f'(module {PIECES["base"]} (func (export "handle-tool-call") (param i32 i32) (result i32)'
        " (call $ok (local.get 0) (local.get 1))))"
    )
)


def sources(folder: Path, build: str) -> Path:
    (folder / "made").write_bytes(ECHO)
    (folder / "plugin.toml").write_text(f'name = "echoes"\nsha256 = ""\n[build]\n{build}\n')
    return folder


def test_what_the_command_makes_is_the_plugin(tmp_path: Path) -> None:
    folder = sources(tmp_path, 'command = "cp made tool.wasm; echo done"')

    assert run_build(folder, ENVIRONMENT) == ECHO


def test_a_core_module_becomes_a_component(tmp_path: Path) -> None:
    folder = sources(tmp_path, 'command = "cp made core.wasm"\ncore = "core.wasm"')
    (folder / "made").write_bytes(CORE)

    assert run_build(folder, ENVIRONMENT) == ECHO

    (folder / "made").write_bytes(b"no module")
    with pytest.raises(NotConvertible):
        run_build(folder, ENVIRONMENT)


def test_python_is_found_although_it_is_not_in_the_path(tmp_path: Path) -> None:
    code = shlex.quote('import shutil; shutil.copy("made", "tool.wasm")')
    command = f"{Path(sys.executable).name} -c {code}"
    folder = sources(tmp_path, f"command = '''{command}'''")

    assert run_build(folder, {"PATH": ""}) == ECHO


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (
            'command = "exit 3"\nneeds = ["ziglang==0.17.0", "node"]',
            r"the build failed \(exit 3\); it needs ziglang==0.17.0, node: "
            "python -m pip install ziglang==0.17.0$",
        ),
        (
            'command = "no-such-compiler"\nneeds = ["rustc"]',
            r"failed \(exit 127\); it needs rustc$",
        ),
        ('command = "true"', "the build did not make .*tool.wasm"),
    ],
)
def test_a_build_that_fails_says_what_it_needs(tmp_path: Path, build: str, problem: str) -> None:
    with pytest.raises(BadPlugin, match=problem):
        run_build(sources(tmp_path, build), ENVIRONMENT)


def test_a_plugin_without_a_command_cannot_be_built(tmp_path: Path) -> None:
    (tmp_path / "plugin.toml").write_text('name = "echoes"\n')

    with pytest.raises(BadPlugin, match=r"has no \[build\] command"):
        run_build(tmp_path, ENVIRONMENT)


def test_what_was_built_is_kept_with_its_sha256(tmp_path: Path) -> None:
    folder = sources(tmp_path, 'command = "true"  # as it was')

    sha256 = save_build(folder, ECHO)

    assert sha256 == hashlib.sha256(ECHO).hexdigest()
    assert (folder / "tool.wasm").read_bytes() == ECHO
    assert (folder / "plugin.toml").read_text() == (
        f'name = "echoes"\nsha256 = "{sha256}"\n[build]\ncommand = "true"  # as it was\n'
    )
    assert {one.name for one in folder.iterdir()} == {"made", "plugin.toml", "tool.wasm"}
