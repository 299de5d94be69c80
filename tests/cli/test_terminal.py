"""Nothing that others wrote steers the terminal, and with --json a failure is JSON too."""

import json
import os
import pty
import subprocess
import sys

import anyio
import pytest
from anyio import to_thread

from gateway.domain.text import one_line, visible
from tests.cli.conftest import Shell
from tests.cli.test_chat import ROOT, SLOW
from tests.fakes.commands import Ended, commands
from tests.fakes.gateway import command
from tests.fakes.model_server import Reply, scripted_server

HOSTILE = (
    "a\x1b[2Jb\x9b31mc\u202ed\u2066e\u200ff\u061cg\u2028h\x7fi\x07j\rk\x85l\u2029m\x1b]0;t\x07n"
)
RAW = frozenset(HOSTILE) - frozenset("abcdefghijklmnt0123[];J")


def is_harmless(text: str) -> bool:
    return not RAW.intersection(text)


async def test_a_sequence_of_the_model_reaches_no_terminal_in_text_nor_in_json(
    alone: Shell,
) -> None:
    async with scripted_server([Reply(list(HOSTILE))] * 3) as server:
        text = SLOW.format(folder=alone.config.parent, url=server.url)
        await anyio.Path(alone.config).write_text(text)
        async with command(alone.config):
            said = await to_thread.run_sync(alone, "chat", "-m", HOSTILE[1:])
            told = await to_thread.run_sync(alone, "chat", "-m", "hi", "--json")
            typed = await to_thread.run_sync(lambda: alone("chat", typed="again\n/quit\n"))
            shown = await to_thread.run_sync(alone, "session", "show", "main:websocket:local:main")
            rows = await to_thread.run_sync(alone, "session", "export", "main:websocket:local:main")

    assert all(is_harmless(ran.out + ran.err) for ran in (said, told, typed, shown, rows))
    assert r"a\x1b[2Jb\u009b31mc\u202ed\u2066e" in said.out
    assert r"\u202e" in told.out
    assert told.json["response"] == HOSTILE
    kept = [json.loads(line) for line in rows.out.splitlines()]
    assert HOSTILE in [one.get("content") for one in kept]


@pytest.mark.parametrize(
    "words",
    [
        (HOSTILE,),
        (f"--{HOSTILE}",),
        ("config", HOSTILE),
        ("config", "get", HOSTILE),
        ("session", "list", "--limit", HOSTILE),
        ("tree", "show", HOSTILE),
        ("plugin", "inspect", HOSTILE),
        ("budget", "set", HOSTILE, "3", "--yes"),
        ("--config", f"/{HOSTILE}", "config", "show"),
        ("--data-dir", f"/{HOSTILE}", "status"),
        ("channel", "add", HOSTILE),
    ],
)
def test_an_error_that_quotes_what_was_typed_shows_it_escaped(
    alone: Shell, words: tuple[str, ...]
) -> None:
    ran, told = alone(*words), alone("--json", *words)

    assert ran.code == told.code != 0
    assert "Traceback" not in ran.err + told.err
    assert is_harmless(ran.out + ran.err + told.out + told.err)
    assert told.json["error"]["message"]


def test_bytes_that_are_no_text_are_shown_too(alone: Shell) -> None:
    ran, told = alone("session", "\udc9b2J"), alone("--json", "session", "\udc9b2J")
    run = alone("logs", "--run", "\udcff")

    assert (run.code, ran.code) == (2, 2)
    assert "is not UTF-8 text" in run.err
    assert r"\udc9b2J" in ran.err
    assert r"\udc9b2J" in told.json["error"]["message"]


def test_a_row_is_one_line_whatever_a_text_holds() -> None:
    assert one_line("a\nb\tc\x1b") == r"a\nb\tc\x1b"
    assert visible("Grüße 👨\u200d👩 日本\u3000語\n") == "Grüße 👨\u200d👩 日本\u3000語\n"


def test_another_encoding_has_escapes_that_json_knows(alone: Shell) -> None:
    code = "from gateway.launcher import main; main()"
    words = ["--config", str(alone.config), "--json", "日-🦊"]
    env = {"HOME": str(alone.config.parent), "PYTHONIOENCODING": "iso-8859-15"}
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, env=env, capture_output=True, check=False
    )

    assert ran.returncode == 2
    assert rb"\u65e5-\ud83e\udd8a" in ran.stdout


def test_colours_are_for_a_terminal_alone(shell: Shell) -> None:
    words = ["chat", "--peer", "colours"]
    master, slave = pty.openpty()
    env, done = {"HOME": str(shell.config.parent), "PATH": os.defpath}, []
    for more in ({}, {"NO_COLOR": "1"}):
        typed, into = os.pipe()
        os.write(into, b"what time is it?\n")
        os.close(into)
        files, given = [typed, slave, slave], ["--config", str(shell.config), *words]
        done.append(commands().begin(given, {**env, **more}, files).wait(30))
        os.close(typed)
    out = os.read(master, 65_536).decode()
    os.close(slave)
    os.close(master)

    assert done == [0, 0]
    assert out.count("\x1b[2m[time {}]") == 1
    assert out.count("[time {}]") == 2


def failed(ran: Ended) -> tuple[int, str, str]:
    error = ran.json["error"]
    assert error["message"]
    assert "Traceback" not in ran.err
    return ran.code, error["type"], error["code"]


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (("vresion",), (2, "usage")),
        ((), (2, "usage")),
        (("session",), (2, "usage")),
        (("session", "list", "--limit", "many"), (2, "usage")),
        (("session", "show"), (2, "usage")),
        (("pair", "deny"), (2, "usage")),
        (("memory", "forget"), (2, "usage")),
        (("status",), (69, "unreachable")),
        (("chat", "-m", "hi"), (69, "unreachable")),
        (("tree", "show", "nothing"), (1, "failed")),
        (("config", "get", "nothing"), (1, "failed")),
        (("provider", "test", "nobody"), (1, "nothing_to_test")),
        (("provider", "add", "x", "--wire", "openai", "--url", "https://x"), (1, "not_agreed")),
        (("budget", "set", "weekly", "3"), (1, "cannot_edit")),
        (("run", "--port", "99999"), (2, "usage")),
        (("--config", "/nowhere.toml", "status"), (78, "config_error")),
        (("--config", "/nowhere.toml", "run"), (78, "config_error")),
    ],
)
def test_a_verb_that_fails_says_so_in_json(
    alone: Shell, words: tuple[str, ...], end: tuple[int, str]
) -> None:
    code, kind, machine = failed(alone(*words, "--json"))

    assert (code, kind, machine) == (*end, end[1])


def test_what_the_gateway_refuses_is_json_with_what_it_says_for_programs(shell: Shell) -> None:
    nobody = shell("session", "show", "demo:websocket:local:nobody", "--json")
    no_key = shell("session", "show", "nonsense", "--json")
    plain = shell("session", "show", "demo:websocket:local:nobody")

    assert failed(nobody)[:2] == (1, "not_found")
    assert nobody.json["error"]["retryable"] is False
    assert failed(no_key)[0] == 1
    assert (plain.code, plain.out) == (1, "")
    assert "nobody" in plain.err


def test_a_key_that_is_not_there_is_refused_in_json(shell: Shell) -> None:
    key = shell.config.parent / "data" / "operator.key"
    text = key.read_text(encoding="ascii")
    key.write_text("wrong", encoding="ascii")
    ran = shell("status", "--json")
    key.write_text(text, encoding="ascii")

    assert failed(ran)[:2] == (77, "not_allowed")


def test_a_run_that_fails_is_an_error_with_its_last_event(shell: Shell) -> None:
    ran = shell("chat", "-m", "", "--json")

    assert failed(ran)[0] != 0
