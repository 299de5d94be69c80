"""`exogate chat` sends a message and shows the answer as it comes."""

import os
import pty
import re
from pathlib import Path

import anyio
from anyio import to_thread

from tests.cli.conftest import Shell
from tests.fakes.commands import commands
from tests.fakes.gateway import command
from tests.fakes.model_server import Reply, scripted_server

ROOT = Path(__file__).parents[2]


def test_one_message_gives_its_answer_on_stdout(shell: Shell) -> None:
    ran = shell("chat", "-m", "My dog is called Luna.", "--peer", "one")
    again = shell("chat", "-m", "What is my dog called?", "--peer", "one")

    assert ran.code == again.code == 0
    assert again.out == "Your dog is called Luna.\n"
    assert again.err == ""


def test_as_json_it_is_the_last_event(shell: Shell) -> None:
    ran = shell("--json", "chat", "-m", "hello", "--peer", "two")

    assert (ran.json["type"], ran.json["reason"]) == ("done", "answered")


def test_another_agent_may_be_asked_and_has_to_exist(shell: Shell) -> None:
    assert shell("--json", "chat", "-m", "hi", "--agent", "second").json["session_key"] == (
        "second:websocket:local:main"
    )
    missing = shell("chat", "-m", "hi", "--agent", "nobody")
    assert (missing.code, missing.out) == (1, "")
    assert "nobody" in missing.err


def test_a_conversation_streams_knows_its_commands_and_can_begin_anew(shell: Shell) -> None:
    typed = "My cat is called Tom.\n/new\nWhat is my cat called?\n/status\n/huh\n\n/stop\n/quit\n"

    ran = shell("chat", "--peer", "three", typed=typed)
    kept = shell("session", "show", "demo:websocket:local:three")
    run_id = shell("--json", "chat", "-m", "hi", "--peer", "three").json["run_id"]

    assert ran.code == 0
    assert "websocket:local:three" in ran.out
    assert "new conversation; facts about you are kept" in ran.out
    assert "Your cat is called Tom." in ran.out
    assert "My cat is called Tom." not in kept.out
    assert (
        f" {run_id}  user      hi\n" in shell("session", "show", "demo:websocket:local:three").out
    )
    assert "sessions" in ran.out
    assert "/quit" in ran.out
    assert "no answer is running" in ran.out


def test_tool_calls_are_shown(shell: Shell) -> None:
    ran = shell("chat", "--peer", "four", typed="what time is it?\n")

    assert "[time {}]" in ran.out
    assert "[time: success" in ran.out


def test_without_a_gateway_it_says_how_to_start_one(alone: Shell) -> None:
    ran = alone("chat", "-m", "hi")

    assert ran.code == 69
    assert "exogate run" in ran.err
    assert "Traceback" not in ran.err


async def test_an_answer_can_be_stopped_by_typing(alone: Shell) -> None:
    gate = anyio.Event()
    async with scripted_server([Reply("half an answer", gates={2: gate})]) as server:
        text = SLOW.format(folder=alone.config.parent, url=server.url)
        await anyio.Path(alone.config).write_text(text)
        async with command(alone.config):
            said = await to_thread.run_sync(_stop_while_it_streams, alone.config)
        await server.requests[0].disconnected.wait()

    assert "Cancelled by user" in said
    assert said.count("you> ") == 2


async def test_what_would_steer_the_terminal_is_shown_as_what_it_is(alone: Shell) -> None:
    steering = "wiped\x1b[2J\x9b2J\x07 and\tkept\nwhole"
    async with scripted_server([Reply(steering)] * 2) as server:
        text = SLOW.format(folder=alone.config.parent, url=server.url)
        await anyio.Path(alone.config).write_text(text)
        async with command(alone.config):
            first = await to_thread.run_sync(alone, "chat", "-m", "hi")
            typed = await to_thread.run_sync(lambda: alone("chat", typed="hi again\n/quit\n"))

    assert first.out == "wiped\\x1b[2J\\u009b2J\\x07 and\tkept\nwhole\n"
    assert "\x1b" not in typed.out
    assert "kept\nwhole" in typed.out


async def test_an_answer_that_a_budget_cuts_or_that_fails_says_so_on_stderr(alone: Shell) -> None:
    called = Reply("Let me see.", calls=[("c1", "nothing", "{}")], usage=(2000, 2900))
    async with scripted_server([Reply(status=401), called]) as server:
        text = SLOW.format(folder=alone.config.parent, url=server.url)
        await anyio.Path(alone.config).write_text(f"{text}\n[budgets]\ndaily = 5000\n")
        async with command(alone.config):
            failed = await to_thread.run_sync(alone, "chat", "-m", "hi", "--peer", "other")
            ran = await to_thread.run_sync(alone, "chat", "-m", "hi")

    assert re.search(r"refused the key.*\nsee `exogate logs --run r_\w+`", failed.err)
    assert ran.out == "Let me see.\n"
    assert "token budget exceeded (daily: 4900/5000)" in ran.err


SLOW = """
[gateway]
port = 0
data_dir = "{folder}/data"

[providers.fake]
wire = "openai"
base_url = "{url}"

[agent]
provider = "fake"
model = "m"
"""


def _stop_while_it_streams(config: Path) -> str:
    ours, theirs = pty.openpty()
    words, env = ["--config", str(config), "chat"], {"HOME": str(config.parent)}
    process = commands().begin(words, env, [theirs] * 3)
    os.close(theirs)
    said = ""
    for until, then in (("you> ", "hi\n"), ("half", "/stop\n"), ("you> ", "/quit\n")):
        begins = len(said)
        while until not in said[begins:]:
            said += os.read(ours, 1024).decode()
        os.write(ours, then.encode())
    process.wait(10)
    os.close(ours)
    return said
