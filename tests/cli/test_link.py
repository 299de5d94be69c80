"""The command line finds the running gateway, and says what is wrong when it cannot."""

from tests.cli.conftest import Shell


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
