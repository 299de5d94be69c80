"""/v1 of a whole gateway: what a caller sends reaches the model, and nothing of it stays."""

import contextlib
import io
import json
import signal
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from tests.fakes.client import WAIT_S, Client, HttpAnswer, connected, http
from tests.fakes.gateway import Command, Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import clock_first, echo, in_a_second

pytestmark = pytest.mark.shared_store

NONE: Mapping[str, str] = {}
HI = {"role": "user", "content": "hi"}
BRIEF = {"role": "system", "content": "Be brief."}
PAID = {"reservation", "spend", "token_record", "series", "audit"}
TABLES = """
    SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'
"""


async def complete(
    url: str, *messages: dict[str, Any], headers: Mapping[str, str] = NONE, **more: object
) -> HttpAnswer:
    body = json.dumps({"model": "main", "messages": [*messages, HI], **more}).encode()
    where = f"{url}/v1/chat/completions"
    return await http(where, method="POST", headers=headers, body=body)


def rows(folder: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(folder / "data" / "store.db")) as db:
        found = db.execute(TABLES).fetchall()
        return {
            name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for (name,) in found
        }


@pytest.mark.embedded_store
async def test_nothing_of_it_is_in_any_table_but_what_it_cost(tmp_path: Path) -> None:
    async with (
        scripted_server(clock_first) as model,
        running(Setup(model.url, tools=("time",)), tmp_path) as site,
    ):
        before = await anyio.to_thread.run_sync(rows, tmp_path)
        answer = await complete(site.url, HI, {"role": "assistant", "content": "yes?"})
        await http(f"{site.url}/api/records")  # which waits for what goes with the next commit
        after = await anyio.to_thread.run_sync(rows, tmp_path)

    assert answer.json["choices"][0]["message"]["content"] == "let me see\n\nit is late"
    assert answer.json["usage"]["total_tokens"] == 55
    grown = {name for name, count in after.items() if count != before[name]}
    assert "token_record" in grown
    assert grown <= PAID


@pytest.mark.parametrize(
    ("template", "system"),
    [
        ("", "You answer tests.\n\nOurs.\n\nBe brief."),
        ("{system_prompt} So it is. {soul}", "Ours.\n\nBe brief. So it is. You answer tests."),
        ("{soul} So it is.", "You answer tests. So it is.\n\nBe brief."),
    ],
)
async def test_instructions_of_a_caller_follow_those_of_the_agent(
    tmp_path: Path, template: str, system: str
) -> None:
    agent = 'system_prompt = "Ours."'
    if template:
        path = tmp_path / "template.md"
        await anyio.Path(path).write_text(template, encoding="utf-8")
        agent += f'\nprompt_template = "{path}"'
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url, agent=agent), tmp_path) as site,
    ):
        await complete(site.url, BRIEF)

    assert model.requests[0].body["messages"][0]["content"] == system


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_calls_of_a_caller_and_their_results_reach_the_model(
    tmp_path: Path, wire: str
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "there"}
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url, wire=wire), tmp_path) as site,
    ):
        answer = await complete(site.url, HI, calling, result)

    assert answer.json["choices"][0]["message"]["content"].endswith("hi")
    assert "there" in json.dumps(model.requests[0].body["messages"])


@pytest.mark.parametrize("stream", [False, True])
async def test_the_call_of_the_provider_ends_and_is_paid_for_when_the_caller_leaves(
    tmp_path: Path, stream: bool
) -> None:
    def stalling(_asked: Asked) -> Reply:
        return Reply(["a", "b"], gates={2: anyio.Event()})

    async with scripted_server(stalling) as model, running(Setup(model.url), tmp_path) as site:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: complete(site.url, stream=stream))
            asked = await model.wait_for(1)
            group.cancel_scope.cancel()
        paid: list[dict[str, Any]] = []
        with anyio.fail_after(WAIT_S):
            await asked.disconnected.wait()
            while not paid:
                paid = (await http(f"{site.url}/api/records")).json["records"]
        async with connected(site.url) as client:
            budgets = (await client.call("budget.status"))["budgets"]

    assert not asked.answered.is_set()
    (record,) = paid
    assert (record["outcome"], record["estimated"]) == ("broken", True)
    assert record["input_tokens"] > 0
    assert [one["reserved"] for one in budgets] == [0] * len(budgets)


async def test_a_spent_budget_is_no_reason_to_try_again(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url, rest="[budgets]\ndaily = 1\n"), tmp_path) as site,
    ):
        answer = await complete(site.url)

    told = answer.json["error"]
    assert (answer.status, told["type"], told["code"]) == (
        *(429, "insufficient_quota"),
        "budget_exceeded",
    )
    assert (told["scope"], told["limit"]) == ("daily", 1)
    assert told["resets_at"].endswith("T00:00:00Z")
    assert answer.headers["x-should-retry"] == "false"
    assert int(answer.headers["Retry-After"]) > 0
    assert not model.requests


@pytest.mark.parametrize(
    ("stream", "said", "told"),
    [
        (False, ["half of ", "it"], (504, "timeout", "false")),
        (True, [], (504, "timeout", "false")),
        (True, ["half of ", "it"], (200, None, None)),
    ],
)
async def test_a_run_out_of_time_is_504_unless_its_stream_has_begun(
    tmp_path: Path, stream: bool, said: list[str], told: tuple[int, str | None, str | None]
) -> None:
    reply = Reply(said, gates={len(said): anyio.Event()})
    async with (
        scripted_server([reply]) as model,
        running(Setup(model.url), tmp_path, in_a_second) as site,
    ):
        answer = await complete(site.url, stream=stream, stream_options={"include_usage": True})

    error = None if answer.status == 200 else answer.json["error"]["code"]
    assert (answer.status, error, answer.headers.get("x-should-retry")) == told
    assert b"half of " in answer.body or not said
    assert b'"total_tokens":0' not in answer.body
    assert b'"finish_reason":"length"' in answer.body


async def test_a_run_out_of_time_is_tried_anew_under_its_key(tmp_path: Path) -> None:
    def script(asked: Asked) -> Reply:
        return Reply("so", gate=anyio.Event()) if asked.number == 1 else Reply("so it is")

    async with (
        scripted_server(script) as model,
        running(Setup(model.url), tmp_path, in_a_second) as site,
    ):
        late = await complete(site.url, headers={"Idempotency-Key": "k"})
        answer = await complete(site.url, headers={"Idempotency-Key": "k"})

    assert (late.status, answer.status) == (504, 200)
    assert answer.json["choices"][0]["message"]["content"] == "so it is"


async def draining(client: Client) -> None:
    with anyio.fail_after(WAIT_S):
        while (await client.call("status"))["ready"]:  # noqa: ASYNC110  # no event tells of it
            await anyio.sleep(0.01)


async def test_told_to_stop_it_answers_what_is_at_work_and_refuses_the_rest(tmp_path: Path) -> None:
    rest, answers = anyio.Event(), list[HttpAnswer]()

    def script(_asked: Asked) -> Reply:
        return Reply(["a", "b"], gates={2: rest})

    async with (
        scripted_server(script) as model,
        command(await Setup(model.url).written(tmp_path)) as site,
        connected(site.url) as client,
    ):

        async def ask() -> None:
            answers.append(await complete(site.url))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await model.wait_for(1)
            site.tell(signal.SIGTERM)
            await draining(client)
            refused = await complete(site.url)
            rest.set()
        code = await site.exit_code()

    assert (refused.status, refused.json["error"]["code"]) == (503, "busy")
    assert answers[0].json["choices"][0]["message"]["content"] == "ab"
    assert code == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_said_again_after_a_crash_is_told_once(tmp_path: Path, stream: bool) -> None:
    named = {"X-Exogate-Session": "s", "Idempotency-Key": "k"}

    def script(asked: Asked) -> Reply:
        is_first = asked.number == 1
        return Reply(["half", "."], gates={2: anyio.Event()}) if is_first else Reply("whole")

    async with scripted_server(script) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site:
            body = json.dumps({"model": "main", "messages": [HI], "stream": True}).encode()
            with pytest.raises(aiohttp.ClientError):
                await dying(site, body, named)
        async with command(config) as site:
            answer = await complete(site.url, headers=named, stream=stream)

    assert b"whole" in answer.body
    assert b"half" not in answer.body


async def dying(site: Command, body: bytes, named: Mapping[str, str]) -> None:
    """A request that is being answered when the gateway is killed."""
    where = f"{site.url}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as session,
        session.post(where, headers=named, data=io.BytesIO(body)) as answer,
    ):
        await answer.content.readuntil(b"half")
        site.kill()
        await answer.read()
