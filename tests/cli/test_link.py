"""The command line finds the running gateway, and says what is wrong when it cannot."""

import os
from pathlib import Path

import pytest

from gateway.cli.command import CliContext, report_errors
from gateway.cli.link import ask
from tests.cli.conftest import Shell

VERBS = ("status", "session list", "budget status", "channel list", "audit tail", "pair list")


@pytest.mark.parametrize(
    "broken",
    [
        '[gateway]\ndata_dir = "{data}"\ntoken = "${{env:NOT_HERE}}"\n',
        '[gateway]\ndata_dir = "{data}"\nprot = 3\n[nonsense]\n[[bindings]]\nagent_id = 3\n',
        '[gateway]\ndata_dir = "{data}"\n[providers.x]\napi_key = "${{file:/nowhere}}"\n',
        "[agent\n[gateway]\n  port = \n  data_dir = '{data}' # here\n[agent]\nid = \"x",
        'gateway.data_dir = "{data}"\n= broken',
        '[ "gateway" ]\n"data_dir" = "{data}"\n\xff',
    ],
)
def test_verbs_need_the_data_directory_and_nothing_else_of_the_configuration(
    shell: Shell, tmp_path: Path, broken: str
) -> None:
    data = shell.config.parent / "data"
    file = tmp_path / "broken.toml"
    file.write_bytes(broken.format(data=data).encode("latin-1"))
    invalid = Shell(file)

    assert invalid("config", "validate").code == 78
    assert [invalid(*verb.split()).code for verb in VERBS] == [0] * len(VERBS)
    assert invalid("chat", "-m", "hi", "--peer", "broken").code == 0


def test_a_data_directory_that_is_named_needs_no_configuration_at_all(
    shell: Shell, tmp_path: Path
) -> None:
    nowhere = Shell(tmp_path / "nowhere.toml")

    named = nowhere("--data-dir", str(shell.config.parent / "data"), "status")
    missing = nowhere("status")

    assert named.code == 0
    assert (missing.code, "nowhere.toml" in missing.err) == (78, True)


def test_who_may_not_look_into_the_data_directory_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, user = tmp_path / "data", os.geteuid()
    folder.mkdir(mode=0)
    os.seteuid(user or 65_532)
    try:
        with pytest.raises(SystemExit) as ended, report_errors(debug=False):
            ask(CliContext(data_dir=folder), "status")
    finally:
        os.seteuid(user)

    assert ended.value.code == 77
    assert f"this user has no access to {folder}/lock: run" in capsys.readouterr().err


def test_without_its_key_it_is_not_allowed_in(shell: Shell) -> None:
    key = shell.config.parent / "data" / "operator.key"
    text = key.read_text(encoding="ascii")
    key.write_text("wrong", encoding="ascii")
    wrong = shell("status")
    key.unlink()
    missing = shell("status")
    key.write_text(text, encoding="ascii")

    assert (wrong.code, missing.code) == (77, 77)
    assert "operator's key" in missing.err
    assert shell("status").code == 0


def test_what_an_earlier_gateway_left_behind_is_no_gateway(alone: Shell) -> None:
    folder = alone.config.parent / "data"
    folder.mkdir(mode=0o700)
    (folder / "lock").write_text('{"pid": 1, "url": "http://127.0.0.1:1"}', encoding="utf-8")

    assert alone("status").code == 69
