"""`exogate audit` tells what changed authority or money, and whether that was changed since."""

from tests.cli.conftest import Shell


def test_the_newest_entries_are_told(shell: Shell) -> None:
    told = shell("--json", "audit", "tail").json["entries"]

    assert told[0]["kind"] == "config.applied"
    assert told[0]["detail"]["authority"]["agents.demo"]["models"] == ["demo/demo"]
    assert "config.applied" in shell("audit", "tail", "-n", "1").out


def test_a_whole_audit_is_whole_and_one_without_a_hash_is_not(shell: Shell) -> None:
    head = shell("--json", "audit", "verify").json["head"]

    assert shell("audit", "verify", "--head", head).code == 0
    missing = shell("audit", "verify", "--head", "0" * 64)
    assert missing.code == 1
    assert "the end is missing" in missing.err
