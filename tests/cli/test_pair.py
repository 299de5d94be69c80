"""`exogate pair` asks the running gateway who may talk."""

import pytest

from tests.cli.conftest import Shell


def test_nobody_waits_where_no_channel_is(shell: Shell) -> None:
    assert shell("--json", "pair", "list").json == {"pairings": []}
    assert "no pairing requests" in shell("pair", "list").err


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_a_code_that_nobody_has_is_refused(shell: Shell, verb: str) -> None:
    done = shell("pair", verb, "AAAA-AAAA")

    assert done.code == 1
    assert "no pairing request has that code" in done.err


def test_who_is_not_there_cannot_be_denied(shell: Shell) -> None:
    done = shell("pair", "deny", "--channel", "telegram", "--person", "5512")

    assert done.code == 1
    assert "person '5512' of telegram:default not found" in done.err


@pytest.mark.parametrize(
    "words",
    [(), ("--person", "5512"), ("--channel", "t"), ("CODE", "--person", "1", "--channel", "t")],
)
def test_it_has_to_be_said_who_is_denied(alone: Shell, words: tuple[str, ...]) -> None:
    done = alone("pair", "deny", *words)

    assert done.code == 2
    assert "give either CODE, or --channel and --person" in done.err


def test_a_person_is_blocked_and_unblocked_by_the_id_that_the_list_shows(shell: Shell) -> None:
    blocked = shell("pair", "block", "matrix:default:@ada:example.org")
    listed = shell("pair", "list").out
    (shown,) = [word for word in listed.split() if word.startswith("matrix:")]
    denied = shell("pair", "deny", "--channel", "matrix", "--person", "@ada:example.org")
    refused = shell("pair", "revoke", shown)
    unblocked = shell("--json", "pair", "unblock", shown).json

    assert shown == "matrix:default:@ada%3Aexample.org"
    assert blocked.out == denied.out == listed
    assert listed.splitlines()[1] == f"{shown}  denied"
    assert (refused.code, "is blocked" in refused.err) == (1, True)
    assert unblocked["person"] == "@ada:example.org"
    assert "no pairing requests" in shell("pair", "list").err


@pytest.mark.parametrize("who", ["5512", "telegram:5512", "telegram::5512", ""])
def test_a_person_needs_a_channel_and_an_account(alone: Shell, who: str) -> None:
    done = alone("pair", "block", who)

    assert done.code == 2
    assert "write CHANNEL:ACCOUNT:PERSON" in done.err
