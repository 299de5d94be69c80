"""The verbs and the options that all of them have."""

import pytest

from gateway.cli.main import VERBS
from gateway.cli.options import gathered
from tests.cli.conftest import Shell


@pytest.mark.parametrize(
    ("words", "in_order"),
    [
        ("version --json", "--json version"),
        ("session list --limit 3 --json -c x.toml", "--json -c x.toml session list --limit 3"),
        ("status --data-dir /d --config=c.toml", "--data-dir /d --config=c.toml status"),
        ("chat -m --json", "chat -m --json"),
        ("status -cx.toml", "-cx.toml status"),
        ("chat -- --json", "chat -- --json"),
        ("status -c", "status -c"),
        ("", ""),
    ],
)
def test_options_of_every_verb_may_stand_anywhere(words: str, in_order: str) -> None:
    assert gathered(words.split()) == in_order.split()


def test_json_after_the_verb_gives_json(alone: Shell) -> None:
    assert alone("version", "--json").json["version"]


def test_an_unknown_verb_is_wrong_usage(alone: Shell) -> None:
    ran = alone("vresion")

    assert ran.code == 2
    assert "No such command" in ran.err


def test_every_verb_is_listed(alone: Shell) -> None:
    shown = alone("--help").out

    assert all(f"\n  {verb} " in shown for verb in VERBS)
