"""`exogate logs` tells what became of a message, whether the gateway runs or not."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from anyio import to_thread

from tests.fakes.client import connected, post_chat
from tests.fakes.commands import commands
from tests.fakes.gateway import Setup, command
from tests.fakes.model_server import Reply, scripted_server

STORY = [
    "message_accepted",
    "attempt_started",
    "model_asked",
    "model_replied",
    "tool_called",
    "tool_answered",
    "model_asked",
    "model_replied",
    "run_ended",
    "run_committed",
    "run_finished",
]


async def asked(config: Path, *words: str) -> Any:
    env = {"PATH": os.defpath, "HOME": str(config.parent)}
    return await to_thread.run_sync(lambda: commands().run([*words, "-c", str(config)], env=env))


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


async def test_the_story_of_a_run_is_the_same_with_and_without_a_gateway(tmp_path: Path) -> None:
    tool = Reply(calls=[("c1", "echo", '{"text": "SECRETWORD"}')])
    async with scripted_server([tool, Reply("done"), Reply("other")]) as model:
        path = await Setup(model.url, tools=("echo",)).written(tmp_path)
        async with command(path) as started:
            told = await post_chat(started.url, "SECRETWORD")
            await post_chat(started.url, "another", conversation_id="d")
            run = told.json["run_id"]
            online = await asked(path, "logs", "--run", run, "--json")
            for_people = await asked(path, "logs", "--run", run, "--event", "tool_answered")
            started.tell(signal.SIGTERM)
            await started.exit_code()
        offline = await asked(path, "logs", "--run", run, "--json")
        runs = await asked(path, "logs", "--event", "run_finished", "--since", "1h", "--json")
        nonsense = await asked(path, "logs", "--since", "nonsense")
        empty = await asked(path, "logs", "--since", "")
        nobody = await asked(path, "logs", "--run", "r_none")

    assert events(online.out) == STORY
    assert offline.out == online.out
    assert "SECRETWORD" not in online.out
    assert for_people.out.split()[1:4] == ["info", "tool_answered", "tool='echo'"]
    assert events(runs.out) == ["run_finished"] * 2
    assert (nonsense.code, empty.code, nobody.code) == (2, 2, 0)
    assert "the journal of the run is not shown" in nobody.err


async def test_a_failed_run_tells_once_who_was_asked_how_often_and_why(tmp_path: Path) -> None:
    refusals = [Reply(status=status, body=b'{"error": {"message": "no"}}') for status in (500, 401)]
    tokens = "".join(
        f'[[tokens]]\nname = "{name}"\ntoken = "{name}-0123456789"\nbudget = {limit}\n'
        for name, limit in (("rich", 90_000), ("poor", 99))
    )
    async with scripted_server(refusals) as model:
        path = await Setup(model.url, rest=tokens).written(tmp_path)
        async with command(path) as started:
            answers = [
                await post_chat(started.url, "hi", token=f"{name}-0123456789")
                for name in ("rich", "poor")
            ]
            runs = [answer.json["run_id"] for answer in answers]
            online = [await asked(path, "logs", "--run", run, "--json") for run in runs]
            for_people = await asked(path, "logs", "--run", runs[0], "--event", "model_failed")
            logged = await asked(path, "logs", "--level", "warning", "--json")
        offline = [await asked(path, "logs", "--run", run, "--json") for run in runs]

    asked_of = {"provider": "fake", "model": "m"}
    failed = {**asked_of, "kind": "auth", "status": 401, "attempts": 2, "why": "HTTP 401: no"}
    tried = {**asked_of, "kind": "server", "status": 500, "attempt": 1, "why": "HTTP 500: no"}
    refused = {"scope": "token:poor", "used": 0, "reserved": 0, "limit": 99, "unit": "tokens"}
    (begun, _, _, retry, failure, *ends), (_, _, _, refusal, *_) = (
        [json.loads(line) for line in one.out.splitlines()] for one in online
    )
    assert [one.out for one in offline] == [one.out for one in online]
    assert (begun["event"], *(one["event"] for one in ends)) == (STORY[0], *STORY[-3:])
    for line, event, about in (
        (retry, "model_retry", tried),
        (failure, "model_failed", failed),
        (refusal, "budget_refused", refused),
        *zip(
            map(json.loads, logged.out.splitlines()),
            (failure["event"], refusal["event"]),
            (failed, refused),
            strict=True,
        ),
    ):
        assert (line["event"], {name: line.get(name) for name in about}) == (event, about)
    assert "provider='fake' model='m' kind='auth' status=401 attempts=2" in for_people.out


async def test_without_a_gateway_the_journal_in_a_shared_store_is_said_to_be_missing(
    tmp_path: Path,
) -> None:
    setup = Setup("http://127.0.0.1:9/v1", rest='[store]\nurl = "ws://127.0.0.1:9"\n')

    told = await asked(await setup.written(tmp_path), "logs", "--run", "r_1")

    assert told.code == 0
    assert "can read a shared store: start it and try again" in told.err


async def test_lines_of_the_log_are_told_to_admins_alone(tmp_path: Path) -> None:
    tokens = "".join(
        f'[[tokens]]\nname = "{name}"\ntoken = "{name}-0123456789"\nscopes = ["{name}"]\n'
        for name in ("read", "admin")
    )
    async with scripted_server([Reply("hi")]) as model:
        path = await Setup(model.url, rest=tokens).written(tmp_path)
        async with command(path) as started:
            async with connected(started.url, token="admin-0123456789") as admin:
                page = await admin.call("logs.tail", event="worker_started", limit=1)
                wrong = await admin.refused("logs.tail", since="nonsense")
            async with connected(started.url, token="read-0123456789") as reader:
                refused = await reader.refused("logs.tail")

    assert page["lines"] == []
    assert (wrong.code, refused.code) == (-32602, -32002)
