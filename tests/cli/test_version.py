"""`exogate version` says which one it is, without loading the gateway."""

import sys

from gateway.domain.version import VERSION
from tests.cli.conftest import Shell


def test_it_is_the_version_of_the_package(alone: Shell) -> None:
    assert alone("version").out.startswith(f"exogate {VERSION} ")
    assert alone("--json", "version").json["version"] == VERSION


def test_the_option_prints_the_same_as_the_command(alone: Shell) -> None:
    assert alone("--version") == alone("version")
    assert alone("--version", "--json") == alone("version", "--json")


def test_it_loads_neither_a_server_nor_a_client(alone: Shell) -> None:
    code = (
        "import sys; sys.argv = ['exogate', 'version']\n"
        "from gateway.cli.main import exogate\n"
        "exogate(standalone_mode=False)\n"
        "heavy = {'starlette', 'uvicorn', 'aiohttp', 'pydantic', 'sqlite3'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    import subprocess

    subprocess.run([sys.executable, "-c", code], check=True, cwd=alone.config.parent, timeout=30)
