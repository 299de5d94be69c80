"""`exogate channel`: channels are added whole or not at all, and the running gateway says how they fare."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.conftest import Shell
from tests.cli.plugin_bench import Bench, unchanged

TOKEN = "SLACK_TOKEN"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled once is not compiled again."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def bench(tmp_path: Path, kept: Path) -> Bench:
    return Bench(tmp_path, kept)


def add(bench: Bench, *words: str) -> Result:
    return bench.run("add", *words, "--yes", verb="channel", env={TOKEN: "xoxb-1"})


def config(bench: Bench) -> dict[str, Any]:
    return tomllib.loads(bench.config.read_text(encoding="utf-8"))


def test_a_channel_is_added_with_its_adapter_and_what_that_asks_for(bench: Bench) -> None:
    bench.written('# ours\n[agent]\nid = "main"\nprovider = "demo"\n')

    done = add(bench, "slack", "--secret", f"bot_token=${{env:{TOKEN}}}", "--set", "team=T1")

    hosts = ["slack.com", "wss-primary.slack.com", "wss-backup.slack.com"]
    (plugin,) = config(bench)["plugins"]
    assert done.exit_code == 0, done.output
    assert (plugin["path"], plugin["capabilities"]) == (
        "bundled:slack",
        [f"http:{host}" for host in hosts],
    )
    assert config(bench)["channels"] == {
        "slack": {
            "plugin": "slack",
            "secrets": {"bot_token": {"value": f"${{env:{TOKEN}}}", "hosts": hosts}},
            "config": {"team": "T1"},
        }
    }
    assert bench.config.read_text(encoding="utf-8").startswith("# ours\n")
    assert "+[channels.slack]" in done.output


def test_a_second_channel_speaks_through_the_same_adapter(bench: Bench) -> None:
    bench.written("")
    add(bench, "webhook", "--name", "ci", "--grant", "http:ci.example")

    done = add(bench, "webhook", "--name", "deploys", "--secret", "secret=${env:SLACK_TOKEN}")

    after = config(bench)
    assert done.exit_code == 0, done.output
    assert [one["capabilities"] for one in after["plugins"]] == [["http:ci.example"]]
    assert list(after["channels"]) == ["ci", "deploys"]
    assert after["channels"]["deploys"]["secrets"] == {"secret": "${env:SLACK_TOKEN}"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("echo",), "echo is no channel adapter"),
        (("telegarm",), "telegram"),
        (("webhook", "--name", "ci"), "there is a channel"),
        (("webhook", "--name", "No!"), "No!"),
        (("webhook", "--name", "websocket"), "surface of the gateway"),
        (("webhook", "--secret", "secret"), "NAME=VALUE"),
        (("webhook", "--secret", "secret=${env:NOT_THERE}"), "NOT_THERE"),
    ],
)
def test_what_cannot_be_a_channel_changes_nothing(
    bench: Bench, words: tuple[str, ...], why: str
) -> None:
    bench.written("")
    add(bench, "webhook", "--name", "ci")

    with unchanged(bench.config):
        done = add(bench, *words)

    assert done.exit_code != 0
    assert why in done.output


def test_where_no_channel_is_there_is_nothing_to_tell(shell: Shell) -> None:
    assert shell("--json", "channel", "list").json == {"channels": []}
    assert "no channel is configured" in shell("channel", "list").err
    letters = shell("--json", "channel", "dead-letters").json
    assert letters == {
        "letters": [],
        "more": False,
        "unread": [],
        "counts": {"outgoing": 0, "incoming": 0},
    }
    assert "no dead letters" in shell("channel", "dead-letters").out


@pytest.mark.parametrize("verb", ["--resubmit", "--drop"])
def test_a_letter_that_is_not_there_is_refused(shell: Shell, verb: str) -> None:
    done = shell("channel", "dead-letters", verb, "d_1")

    assert done.code == 1
    assert "d_1" in done.err


def test_a_letter_is_not_both_sent_and_dropped(alone: Shell) -> None:
    assert alone("channel", "dead-letters", "--resubmit", "a", "--drop", "a").code == 2
