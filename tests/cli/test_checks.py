"""What `exogate doctor` looks at: it finds what is wrong, says how to mend it, changes nothing."""

import contextlib
import sqlite3
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import Shell, end
from tests.fakes.gateway import spawn


def test_a_healthy_installation_has_no_errors(alone: Shell) -> None:
    ran = alone("doctor")

    assert ran.code == 0, ran.out
    assert "checks passed" in ran.out


def test_a_plugin_that_a_start_would_refuse_is_an_error_with_its_reason(alone: Shell) -> None:
    text = alone.config.read_text(encoding="utf-8")
    more = f'[[plugins]]\nname = "echo"\npath = "bundled:echo"\nsha256 = "{"0" * 64}"\n'
    alone.config.write_text(text + more, encoding="utf-8")

    ran = alone("--json", "doctor")

    found = {one["id"]: one for one in ran.json["findings"]}["plugin.refused"]
    assert (ran.code, found["path"], found["severity"]) == (1, "plugins.echo", "error")
    assert "has changed" in found["message"]


@pytest.mark.parametrize(
    ("more", "finding"),
    [
        ('[[bindings]]\nagent_id = "demo"\nchannel = "telegram"\n', "bindings.shadowed"),
        ('[providers.x]\nwire = "openai"\nbase_url = "https://x.example/v1"\n', "provider.key"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_found(alone: Shell, more: str, finding: str) -> None:
    text = alone.config.read_text(encoding="utf-8")
    alone.config.write_text(text + more, encoding="utf-8")

    found = {one["id"]: one for one in alone("--json", "doctor").json["findings"]}

    assert finding in found
    assert found[finding]["fix"]
    assert alone("doctor").code == 0
    assert alone("doctor", "--strict").code == 1


def test_a_data_directory_that_others_can_read_is_found(alone: Shell) -> None:
    folder = alone.config.parent / "data"
    folder.mkdir()
    folder.chmod(0o755)

    assert "data.mode" in alone("doctor").out


def test_a_damaged_store_is_found_and_left_alone(alone: Shell) -> None:
    folder = alone.config.parent / "data"
    folder.mkdir(mode=0o700)
    database = Path(folder / "store.db")
    database.write_bytes(b"this is no database, whatever it is called" * 100)

    ran = alone("doctor")

    assert ran.code == 1
    assert "store.damaged" in ran.out
    assert database.read_bytes().startswith(b"this is no database")


def test_a_store_that_lacks_a_column_is_found_and_not_started(alone: Shell) -> None:
    gateway = spawn(alone.config)
    assert anyio.run(gateway.ready)
    end(gateway)
    with contextlib.closing(sqlite3.connect(alone.config.parent / "data" / "store.db")) as db:
        db.execute("ALTER TABLE run DROP COLUMN forgiven")

    for ran in (alone("doctor"), alone("run")):
        assert ran.code == 1
        assert "columns are missing: run.forgiven" in ran.out + ran.err


def test_a_bad_configuration_is_78(alone: Shell) -> None:
    alone.config.write_text("[gateway", encoding="utf-8")

    assert alone("doctor").code == 78
