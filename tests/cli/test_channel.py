"""`exogate channel`: channels are added whole or not at all, and the running gateway says how they fare."""

import os
import pty
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.conftest import Shell
from tests.cli.plugin_bench import Bench, unchanged
from tests.fakes.commands import commands
from tests.fakes.compiled import compiled

TOKEN = "SLACK_TOKEN"
ENV = {TOKEN: "xoxb-1", "FIRST": "another"}  # channels that are called have each its own
FIRST = ("--secret", "secret=${env:FIRST}", "--set", "scheme=hmac")
SIGNED = ("--secret", "secret=${env:SLACK_TOKEN}", "--set", "scheme=hmac")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    adapters = ("discord", "matrix", "slack", "telegram", "webhook", "whatsapp")
    return compiled(tmp_path_factory.mktemp("data"), "echo", *adapters)


@pytest.fixture
def bench(tmp_path: Path, kept: Path) -> Bench:
    return Bench(tmp_path, kept)


@pytest.fixture(scope="module")
def with_ci(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> str:
    """A configuration to which a channel was added."""
    bench = Bench(tmp_path_factory.mktemp("home"), kept)
    bench.written("")
    assert add(bench, "webhook", "--name", "ci", *FIRST).exit_code == 0
    return bench.config.read_text(encoding="utf-8")


def add(bench: Bench, *words: str) -> Result:
    return bench.run("add", *words, "--yes", verb="channel", env=ENV)


def config(bench: Bench) -> dict[str, Any]:
    return tomllib.loads(bench.config.read_text(encoding="utf-8"))


def test_a_channel_is_added_with_its_adapter_and_what_that_asks_for(bench: Bench) -> None:
    bench.written('# ours\n[agent]\nid = "main"\nprovider = "demo"\n')

    secrets = [f"{name}=${{env:{TOKEN}}}" for name in ("bot_token", "signing_secret")]
    given = [word for secret in secrets for word in ("--secret", secret)]
    done = add(bench, "slack", *given, "--set", "team=T1")

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
            "secrets": dict.fromkeys(
                ("bot_token", "signing_secret"), {"value": f"${{env:{TOKEN}}}", "hosts": hosts}
            ),
            "config": {"team": "T1"},
        }
    }
    assert bench.config.read_text(encoding="utf-8").startswith("# ours\n")
    assert "+[channels.slack]" in done.output


def test_a_second_channel_speaks_through_the_same_adapter(bench: Bench) -> None:
    bench.written("")
    add(bench, "webhook", "--name", "ci", "--grant", "http:ci.example", *FIRST)

    done = add(bench, "webhook", "--name", "deploys", *SIGNED)

    after = config(bench)
    assert done.exit_code == 0, done.output
    assert [one["capabilities"] for one in after["plugins"]] == [["http:ci.example"]]
    assert list(after["channels"]) == ["ci", "deploys"]
    assert after["channels"]["deploys"]["secrets"] == {"secret": "${env:SLACK_TOKEN}"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("echo",), "echo is not a channel adapter"),
        (("telegarm",), "telegram"),
        (("webhook", "--name", "ci", *SIGNED), "the file already has a channel"),
        (("webhook", "--name", "No!", *SIGNED), "No!"),
        (("webhook", "--name", "websocket", *SIGNED), "built-in channel"),
        (("webhook",), "needs secret, config.scheme"),
        (("webhook", "--secret", "secret=${env:SLACK_TOKEN}"), "--set scheme=VALUE"),
        (("webhook", *SIGNED[:2], "--set", "scheme=md5"), "scheme"),
        (("webhook", *SIGNED[:2], "--set", "scheme=standard"), "whsec_"),
        (("webhook", *SIGNED, "--transport", "socket"), "offers no socket"),
        (("telegram",), "needs bot_token"),
        (("telegram", "--config", "bot_token=very-secret"), "--set bot_token=..."),
        (("telegram", "--config=bot_token=very-secret"), "--set bot_token=..."),
        (("telegram", "-c", "bot_token=very-secret"), "--set bot_token=..."),
        (("telegram", "--secret", "bot_token="), "needs bot_token"),
        (("slack", "--transport", "socket"), "needs bot_token, app_token"),
        (
            ("discord", "--transport", "webhook", "--secret", "bot_token=${env:SLACK_TOKEN}"),
            "config.public_key",
        ),
        (("matrix",), "config.api_base"),
        (("whatsapp",), "needs access_token, verify_token, app_secret, config.phone_number_id"),
        (("webhook", "--secret", "secret"), "NAME=VALUE"),
        (("webhook", "--secret", "secret=${env:NOT_THERE}", *SIGNED[2:]), "NOT_THERE"),
    ],
)
def test_what_cannot_be_a_channel_changes_nothing(
    bench: Bench, with_ci: str, words: tuple[str, ...], why: str
) -> None:
    bench.written(with_ci)

    with unchanged(bench.config):
        done = add(bench, *words)

    assert done.exit_code != 0
    assert why in done.output
    assert "very-secret" not in done.output


WITH_CHANNELS = """# ours
[agent]
id = "main"
provider = "demo"

[[plugins]]
name = "webhook"
path = "bundled:webhook"

# builds
[channels.ci]
plugin = "webhook"  # signed
secrets = { secret = "${env:FIRST}" }
config.scheme = "hmac"
# after builds

[[bindings]]
agent_id = "main"
channel = "ci"

[[bindings]] # stays
agent_id = "main"
peer_id = "x"

[channels.deploys]
plugin = "webhook"
[channels.deploys.secrets]
secret = "${env:GONE}"
[channels.deploys.config]
scheme = "hmac"
"""


def changed(bench: Bench, *words: str, **env: str) -> Result:
    return bench.run(*words, verb="channel", env={**ENV, **env})


def test_what_a_channel_is_given_is_changed_and_all_else_stays(bench: Bench) -> None:
    bench.written(WITH_CHANNELS)

    mended = changed(bench, "set", "deploys", "--secret", "secret=${env:SLACK_TOKEN}", "--yes")
    given = changed(
        bench,
        "set",
        "ci",
        "--set",
        "scheme=github",
        "--set",
        "note=a",
        "--transport",
        "webhook",
        "-y",
    )

    after = config(bench)["channels"]
    text = bench.config.read_text(encoding="utf-8")
    assert (mended.exit_code, given.exit_code) == (0, 0), mended.output + given.output
    assert after["deploys"]["secrets"] == {"secret": "${env:SLACK_TOKEN}"}
    assert after["ci"]["config"] == {"scheme": "github", "note": "a"}
    assert after["ci"]["transport"] == "webhook"
    assert '-secret = "${env:GONE}"' in mended.output
    assert all(
        comment in text for comment in ("# ours", "# builds", "# signed", "# after", "# stays")
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "ci", "--set", "scheme=standard"), "GONE"),
        (("set", "deploys", "--set", "scheme=standard", *SIGNED[:2]), "whsec_"),
        (("set", "deploys", "--set", "scheme="), "GONE"),
        (("set", "deploys", "--set", "scheme=", *SIGNED[:2]), "scheme"),
        (("set", "nobody", "--set", "a=b"), "no [channels.nobody]"),
        (("set", "ci"), "--set KEY=VALUE"),
        (("set", "ci", "--config", "a=b"), "--set a=..."),
        (("remove", "nobody"), "no [channels.nobody]"),
    ],
)
def test_what_would_break_a_channel_is_not_written(
    bench: Bench, words: tuple[str, ...], why: str
) -> None:
    bench.written(WITH_CHANNELS)

    with unchanged(bench.config):
        done = changed(bench, *words, "--yes")

    assert done.exit_code != 0
    assert why in done.output


def test_a_channel_is_removed_with_its_bindings_and_nothing_else(bench: Bench) -> None:
    bench.written(WITH_CHANNELS)
    changed(bench, "remove", "deploys", "--yes")

    with unchanged(bench.config):
        refused = changed(bench, "remove", "ci")
    done = changed(bench, "remove", "ci", "--yes")

    after = config(bench)
    text = bench.config.read_text(encoding="utf-8")
    assert refused.exit_code == 1
    assert done.exit_code == 0, done.output
    assert "1 binding of the channel will be removed" in done.output
    assert "-[channels.ci]" in done.output
    assert after["bindings"] == [{"agent_id": "main", "peer_id": "x"}]
    assert "channels" not in after
    assert after["plugins"]
    assert all(comment in text for comment in ("# ours", "# builds", "# after builds", "# stays"))


def test_what_a_channel_needs_is_asked_for_on_a_terminal(alone: Shell) -> None:
    words = ["--config", str(alone.config), "channel", "add", "webhook", "--name", "ci"]
    compiled(alone.config.parent / "data", "webhook")
    ours, theirs = pty.openpty()
    env = {"HOME": str(alone.config.parent), "PATH": os.defpath, TOKEN: "xoxb-1"}
    process = commands().begin(words, env, [theirs] * 3)
    os.close(theirs)
    talk = (
        ("config.scheme (github, hmac, standard)", "hmac"),
        ("secret secret", "typed-by-mistake"),
        ("write a reference", "${env:SLACK_TOKEN}"),
        ("Add it", "y"),
        ("was added to", ""),
    )
    said = ""
    for until, then in talk:
        begins = len(said)
        while until not in said[begins:]:
            said += os.read(ours, 1024).decode()
        os.write(ours, f"{then}\n".encode())
    ended = process.wait(20)
    os.close(ours)

    after = tomllib.loads(alone.config.read_text(encoding="utf-8"))["channels"]["ci"]
    assert ended == 0
    assert after["secrets"] == {"secret": "${env:SLACK_TOKEN}"}
    assert after["config"] == {"scheme": "hmac"}


def test_where_no_channel_is_there_is_nothing_to_tell(shell: Shell) -> None:
    assert shell("--json", "channel", "list").json == {"channels": []}
    assert "no channels; add one" in shell("channel", "list").err
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
