"""One message, however often it is sent: one turn and one answer."""

from collections import Counter
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import Client, connected, post_chat
from tests.fakes.gateway import ENGINE, Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.forms import is_long
from tests.scenarios.scripts import echo, talking

pytestmark = pytest.mark.shared_store

MESSAGES, COPIES, SESSIONS = 1_000 if is_long() else 80, 10, 50 if is_long() else 20
OVER_A_SERVER = 50 if is_long() else 40  # messages
LONG_S = 60.0  # ten thousand calls on a busy machine


@pytest.mark.requirement("S-004-Flow-03")
async def test_ten_copies_at_once_of_each_of_many_messages_are_a_turn_each(tmp_path: Path) -> None:
    messages = OVER_A_SERVER if ENGINE.section else MESSAGES
    given: dict[int, set[tuple[str, str]]] = {n: set() for n in range(messages)}
    first: Counter[int] = Counter()

    async def copy(url: str) -> None:
        async with connected(url, wait_s=LONG_S) as client, anyio.create_task_group() as group:
            for lane in range(SESSIONS):
                group.start_soon(one_lane, client, lane)

    async def one_lane(client: Client, lane: int) -> None:
        for number in range(lane, messages, SESSIONS):
            sent = await client.send(
                f"question {number}", peer=f"p{lane}", idempotency_key=f"id:{number}"
            )
            given[number].add((sent["message_id"], sent["run_id"]))
            first[number] += not sent["duplicate"]
            if not sent["duplicate"]:
                end = (await client.ended(sent["run_id"]))[-1]
                assert end["response"] == f"answer to question {number}"

    async with scripted_server(echo) as model, running(Setup(model.url), tmp_path) as site:
        async with anyio.create_task_group() as group:
            for _ in range(COPIES):
                group.start_soon(copy, site.url)
        async with connected(site.url) as client:
            status = await client.call("status")
            pages = [
                await client.call(
                    "chat.history", session_key=f"main:websocket:local:p{lane}", limit=500
                )
                for lane in range(SESSIONS)
            ]

    asked = Counter(request.last_text for request in model.requests)
    kept = Counter(
        one["content"] for page in pages for one in page["messages"] if one["role"] == "user"
    )
    once = Counter({f"question {number}": 1 for number in range(messages)})
    assert asked == once
    assert kept == once
    assert {len(ids) for ids in given.values()} == {1}
    assert first == Counter(dict.fromkeys(range(messages), 1))
    assert status["pending"] == 0


async def test_a_copy_in_the_middle_of_the_answer_may_listen_to_it(tmp_path: Path) -> None:
    gate = anyio.Event()
    async with (
        scripted_server([Reply("slowly", gate=gate)]) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as one,
        connected(site.url) as other,
    ):
        sent = await one.send("hi", idempotency_key="k")
        again = await other.send("hi", idempotency_key="k")
        await other.call("chat.resume", run_id=again["run_id"], after_seq=0)
        gate.set()
        heard = await one.ended(sent["run_id"])
        heard_too = await other.ended(sent["run_id"])

    assert again == {**sent, "duplicate": True}
    assert heard == heard_too


async def test_the_same_key_with_other_words_is_a_conflict(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (model, _site, client):
        await client.ask("one thing", idempotency_key="k")
        errors = [
            await client.refused("chat.send", content="another thing", idempotency_key="k"),
            await client.refused("chat.send", content="one thing", peer="x", idempotency_key="k"),
        ]
        elsewhere = await client.ask(
            "another thing", channel="slack", account="acme", idempotency_key="k"
        )

    assert [(error.code, error.data["type"]) for error in errors] == [(-32006, "conflict")] * 2
    assert elsewhere["response"] == "answer to another thing"
    assert len(model.requests) == 2


@pytest.mark.requirement("S-004-Flow-03")
async def test_a_copy_after_a_restart_gives_the_first_ones_ids_and_no_second_turn(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model:
        setup = Setup(model.url)
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            sent = await client.send("hi", idempotency_key="k")
            events = list(await client.ended(sent["run_id"]))
        async with running(setup, tmp_path) as site, connected(site.url) as client:
            again = await client.send("hi", idempotency_key="k")
            await client.call("chat.resume", run_id=again["run_id"], after_seq=0)
            heard = await client.ended(again["run_id"])

            assert again == {**sent, "duplicate": True}
            assert heard == events
    assert len(model.requests) == 1


async def test_copies_of_an_http_request_get_the_stored_answer(tmp_path: Path) -> None:
    gate = anyio.Event()
    answers: list[bytes] = []

    def script(asked: Asked) -> Reply:
        return Reply(f"answer {asked.number}", gate=gate)

    async def post(url: str) -> None:
        answers.append((await post_chat(url, "hi", key="k")).body)

    async with scripted_server(script) as model:
        setup = Setup(model.url)
        async with running(setup, tmp_path) as site, anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(post, site.url)
            with anyio.fail_after(60):
                await model.wait_for(1)
            gate.set()
        async with running(setup, tmp_path) as site:
            later = await post_chat(site.url, "hi", key="k")
            streamed = await post_chat(site.url, "hi", key="k", stream=True)
            other = await post_chat(site.url, "something else", key="k")

    assert len(answers) == 10
    assert set(answers) == {later.body}
    assert later.json["response"] == "answer 1"
    assert streamed.sse[-1]["response"] == "answer 1"
    assert (other.status, other.json["error"]["type"]) == (409, "conflict")
    assert len(model.requests) == 1
