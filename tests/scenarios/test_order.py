"""Within a session one after the other, across sessions side by side."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import WAIT_S, Client, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo, history_of, shown, talking

pytestmark = pytest.mark.shared_store


@pytest.mark.requirement("S-003-Session-08", "S-003-Session-05", "S-004-Flow-03")
async def test_twenty_sends_at_once_to_one_session_are_answered_one_after_the_other(
    tmp_path: Path,
) -> None:
    open_calls: list[int] = []

    async with scripted_server(lambda asked: _noting(asked, open_calls, model.open)) as model:
        setup = Setup(model.url, rest="[context]\nrecent_turns = 30")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            await ask_at_once(client, [f"question {number}" for number in range(20)])
            page = await client.call("chat.history", session_key="main:websocket:local:main")
            session = await client.call("session.get", session_key="main:websocket:local:main")

    said = shown(page)
    questions = [text for role, text in said if role == "user"]
    assert [role for role, _ in said] == ["user", "assistant"] * 20
    assert sorted(questions) == sorted(f"question {number}" for number in range(20))
    assert [text for role, text in said if role == "assistant"] == [
        f"answer to {question}" for question in questions
    ]
    assert open_calls == [1] * 20
    # Each turn sees all that came before it.
    for number, asked in enumerate(model.requests):
        assert history_of(asked) == said[: 2 * number + 1]
    assert session["message_count"] == 40


async def ask_at_once(client: Client, questions: Sequence[str]) -> None:
    async with anyio.create_task_group() as group:
        for question in questions:
            group.start_soon(client.ask, question)


def _noting(asked: Asked, open_calls: list[int], at_once: int) -> Reply:
    open_calls.append(at_once)
    return echo(asked)


@pytest.mark.requirement("S-003-Session-08")
async def test_messages_of_one_session_keep_their_order_across_connections(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as one,
        connected(site.url) as other,
    ):
        clients: list[Client] = [one, other] * 5
        runs = [(c, (await c.send(f"q{n}"))["run_id"]) for n, c in enumerate(clients)]
        for client, run_id in runs:
            await client.ended(run_id)

    asked = [request.last_text for request in model.requests]
    assert asked == [f"q{number}" for number in range(10)]


@pytest.mark.requirement("S-003-Session-08", "S-004-Flow-06")
async def test_a_session_whose_model_is_slow_holds_up_no_other(tmp_path: Path) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply("slow", gate=gate) if asked.last_text == "slow" else echo(asked)

    async with talking(script, tmp_path) as (model, _site, client):
        held = await client.send("slow", peer="a")
        behind = await client.send("behind", peer="a")
        with anyio.fail_after(WAIT_S):
            await model.wait_for(1)
        end = await client.ask("quick", peer="b")

        assert end["response"] == "answer to quick"
        assert not [e for e in client.events[held["run_id"]] if e["type"] == "done"]
        assert not client.events[behind["run_id"]]
        gate.set()
        assert (await client.ended(held["run_id"]))[-1]["response"] == "slow"
        assert (await client.ended(behind["run_id"]))[-1]["response"] == "answer to behind"


@pytest.mark.requirement("S-004-Flow-06")
async def test_what_is_said_in_one_session_is_unknown_in_another(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        await client.ask("the secret is 42", peer="a")
        await client.ask("what is the secret?", peer="b")

    assert "42" not in str(model.requests[1].body)


async def test_a_session_with_too_many_waiting_messages_refuses_more_and_keeps_the_others(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply(f"answer to {asked.last_text}", gate=gate)

    async with scripted_server(script) as model:
        setup = Setup(model.url, rest="[queue]\nmax_pending = 3")
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            runs = [(await client.send(f"q{number}"))["run_id"] for number in range(3)]
            error = await client.refused("chat.send", content="one too many")
            elsewhere = await client.send("elsewhere", peer="b")
            gate.set()
            ends = [(await client.ended(run))[-1]["response"] for run in runs]
            await client.ended(elsewhere["run_id"])
            again = await client.ask("one too many")

    assert (error.code, error.data["retryable"]) == (-32005, True)
    assert error.data["retry_after_s"] > 0
    assert ends == ["answer to q0", "answer to q1", "answer to q2"]
    assert again["response"] == "answer to one too many"


@pytest.mark.requirement("S-003-Session-04", "S-003-Session-09")
async def test_after_a_restart_the_history_is_the_same_and_goes_on(tmp_path: Path) -> None:
    async with scripted_server(echo) as model:
        setup = Setup(model.url)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("before")
            await client.ended(sent["run_id"])
            key = sent["session_key"]
            page = await client.call("chat.history", session_key=key)
            session = await client.call("session.get", session_key=key)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            again = await client.call("chat.history", session_key=key)
            same = await client.call("session.get", session_key=key)
            await client.ask("after")
            later = await client.call("session.get", session_key=key)

    assert again == page
    assert same == session
    assert history_of(model.requests[1]) == [
        ("user", "before"),
        ("assistant", "answer to before"),
        ("user", "after"),
    ]
    assert later["created_at"] == session["created_at"]
    assert later["updated_at"] > session["updated_at"]
