"""`exogate init` makes a folder that a gateway starts from, and keeps what is there."""

import json
from pathlib import Path

import anyio

from tests.cli.conftest import Shell, end
from tests.fakes.gateway import spawn


def test_the_folder_is_valid_and_a_gateway_starts_from_it(alone: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "new"

    made = alone("--json", "init", str(folder))
    validated = alone("--config", str(folder / "config.toml"), "config", "validate")
    gateway = spawn(folder / "config.toml")

    assert made.code == 0
    assert [Path(one).name for one in made.json["written"]] == [
        "config.toml",
        "main.md",
        "schema.json",
    ]
    assert (validated.code, validated.err) == (0, "")
    assert anyio.run(gateway.ready)
    end(gateway)


def test_the_configuration_is_short_and_names_its_schema(alone: Shell, tmp_path: Path) -> None:
    alone("init", str(tmp_path / "new"))

    text = (tmp_path / "new" / "config.toml").read_text(encoding="utf-8")
    schema = text.splitlines()[0].removeprefix("#:schema ")

    assert len(text.splitlines()) <= 40
    assert json.loads((tmp_path / "new" / schema).read_text(encoding="utf-8"))["properties"]


def test_what_is_there_is_named_and_stays(alone: Shell, tmp_path: Path) -> None:
    mine = tmp_path / "new" / "config.toml"
    mine.parent.mkdir()
    mine.write_text("# mine\n", encoding="utf-8")

    ran = alone("init", str(mine.parent))

    assert ran.code == 0
    assert f"{mine} exists and was not changed" in ran.out
    assert mine.read_text(encoding="utf-8") == "# mine\n"
    assert (mine.parent / "souls" / "main.md").exists()


def test_a_folder_that_cannot_be_made_is_said_in_a_sentence(alone: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    ran = alone("init", str(tmp_path / "file" / "below"))

    assert ran.code == 1
    assert "cannot be written: Not a directory" in ran.err
