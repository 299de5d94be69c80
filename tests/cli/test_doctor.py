"""`exogate doctor` shows what its checks found."""

from tests.cli.conftest import Shell


def test_findings_are_shown_with_what_to_do(alone: Shell) -> None:
    text = alone.config.read_text(encoding="utf-8")
    more = '[[bindings]]\nagent_id = "demo"\nchannel = "telegram"\n'
    alone.config.write_text(text + more, encoding="utf-8")

    ran = alone("doctor")

    assert "⚠ bindings.1" in ran.out
    assert "config unset bindings.1 --yes" in ran.out
