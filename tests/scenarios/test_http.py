"""POST /api/chat: whole and as a stream, and every way to be refused."""

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import HttpAnswer, http, post_chat, seqs_of, texts_of, types_of
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.forms import each
from tests.scenarios.scripts import clock_first, echo, history_of, in_a_second, talking

pytestmark = pytest.mark.shared_store

AS_JSON = {"Content-Type": "application/json"}
STREAMED = {f"q{number}" for number in range(0, 40, 2)}


@pytest.mark.requirement(
    "S-004-Flow-01", "S-004-Flow-04", "S-004-Result-01", "S-004-Result-02", "S-004-Result-03"
)
@pytest.mark.requirement("S-004-Result-04", "S-004-Result-05")
async def test_a_message_gets_its_answer_with_all_that_is_promised(tmp_path: Path) -> None:
    async with (
        scripted_server(clock_first) as model,
        running(Setup(model.url, tools=("time",)), tmp_path) as site,
    ):
        answer = await post_chat(site.url, "how late is it?")

    said = answer.json
    assert answer.status == 200
    assert said["response"] == "it is late"
    assert (said["tokens_used"], said["model"]) == (55, "m")
    assert said["execution_time_ms"] > 0
    assert isinstance(said["execution_time_ms"], int)
    (made,) = said["tool_calls_made"]
    assert (made["id"], made["name"], made["status"]) == ("call_1", "time", "success")
    assert answer.headers["x-exogate-run"] == said["run_id"]
    assert said["message_id"]
    assert said["conversation_id"]


@pytest.mark.requirement("S-004-Flow-01", "S-004-Conv-01", "S-004-ACtx-02")
async def test_a_conversation_goes_on_under_its_id_and_a_new_one_knows_nothing(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model, running(Setup(model.url), tmp_path) as site:
        first = (await post_chat(site.url, "my name is Ann")).json
        again = (
            await post_chat(site.url, "who am I?", conversation_id=first["conversation_id"])
        ).json
        other = (await post_chat(site.url, "who am I?")).json
        none = (await post_chat(site.url, "who am I?", conversation_id=None)).json

    assert again["conversation_id"] == first["conversation_id"]
    ids = {one["conversation_id"] for one in (first, other, none)}
    assert len(ids) == 3
    assert [len(history_of(asked)) for asked in model.requests] == [1, 3, 1, 1]


@pytest.mark.requirement("S-004-Flow-06")
async def test_answers_to_requests_at_the_same_time_are_not_mixed_up(tmp_path: Path) -> None:
    answers, all_here = dict[str, HttpAnswer](), anyio.Event()

    def script(asked: Asked) -> Reply:
        return replace(echo(asked), gate=all_here)

    async with scripted_server(script) as model, running(Setup(model.url), tmp_path) as site:

        async def ask(text: str) -> None:
            answers[text] = await post_chat(site.url, text, stream=text in STREAMED)

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(ask, f"q{number}")
            await model.wait_for(40)
            all_here.set()

    ends = {text: one.sse[-1] if text in STREAMED else one.json for text, one in answers.items()}
    assert {text: end["response"] for text, end in ends.items()} == {
        f"q{number}": f"answer to q{number}" for number in range(40)
    }
    assert [len(history_of(asked)) for asked in model.requests] == [1] * 40


@pytest.mark.parametrize("by", ["body", "header"])
async def test_a_stream_holds_the_chunks_of_the_run(tmp_path: Path, by: str) -> None:
    async with talking([Reply(["one ", "two"])], tmp_path) as (_model, site, client):
        if by == "body":
            answer = await post_chat(site.url, "count", stream=True)
        else:
            answer = await http(
                f"{site.url}/api/chat",
                method="POST",
                headers={**AS_JSON, "Accept": "text/event-stream"},
                body=b'{"message":"count"}',
            )
        events = answer.sse
        run_id = answer.headers["x-exogate-run"]
        await client.call("chat.resume", run_id=run_id, after_seq=0)

        assert client.events[run_id] == events
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert types_of(events) == ["context_update", "content", "usage", "done"]
    assert seqs_of(events) == list(range(1, len(events) + 1))
    assert texts_of(events) == events[-1]["response"] == "one two"


async def test_a_failing_model_is_502_and_the_conversation_can_go_on(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply(status=400), Reply("better")]) as model,
        running(Setup(model.url), tmp_path) as site,
    ):
        failed = await post_chat(site.url, "hi")
        error, ids = failed.json["error"], failed.json
        better = await post_chat(site.url, "again", conversation_id=ids["conversation_id"])

    assert failed.status == 502
    assert (error["type"], error["retryable"]) == ("provider_error", False)
    assert error["message"]
    assert better.json["response"] == "better"


async def test_a_run_out_of_time_is_504_with_what_there_is(tmp_path: Path) -> None:
    reply = Reply(["half of ", "it"], gates={2: anyio.Event()})
    async with (
        scripted_server([reply]) as model,
        running(Setup(model.url), tmp_path, in_a_second) as site,
    ):
        answer = await post_chat(site.url, "hi")

    said = answer.json
    assert (answer.status, said["error"]["type"]) == (504, "timeout")
    assert (said["response"], said["partial"], said["reason"]) == ("half of ", True, "timeout")


REFUSED: dict[str, tuple[bytes, int]] = {
    "no json": (b"{", 400),
    "nothing": (b"", 400),
    "a list": (b"[]", 400),
    "too deep": (b'{"message":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
    "two texts": (b'{"message":"a"}{"message":"b"}', 400),
    "no UTF-8": (b'{"message":"\xff"}', 400),
    "not a number": (b'{"message":"a","x":NaN}', 400),
    "half a surrogate pair": (rb'{"message":"\ud800"}', 400),
    "no message": (b"{}", 422),
    "an empty message": (b'{"message":"  "}', 400),
    "a number": (b'{"message":1}', 422),
    "an unknown member": (b'{"message":"a","modle":"x"}', 422),
    "an endless message": (b'{"message":"' + b"a" * 500_000 + b'"}', 422),
    "an unknown agent": (b'{"message":"a","agent":"nobody"}', 404),
    "an endless body": (b'{"message":"' + b"a" * 5_000_000 + b'"}', 413),
}


@pytest.mark.embedded_store
@pytest.mark.requirement("S-004-Valid-01")
async def test_bad_requests_are_refused_with_a_reason_and_reach_no_model(tmp_path: Path) -> None:
    async with scripted_server(echo) as model, running(Setup(model.url), tmp_path) as site:
        for number, what in enumerate(each(REFUSED), 1):
            body, status = REFUSED[what]
            answer = await http(f"{site.url}/api/chat", method="POST", headers=AS_JSON, body=body)
            error = answer.json["error"]
            after = await post_chat(site.url, "still there?")

            assert answer.status == status, answer.body
            assert {"type", "code", "message", "retryable"} <= error.keys()
            assert error["message"]
            assert after.status == 200
            assert len(model.requests) == number


async def test_health_says_alive_and_ready(tmp_path: Path) -> None:
    async with scripted_server(echo) as model, running(Setup(model.url), tmp_path) as site:
        alive = await http(f"{site.url}/healthz")
        ready = await http(f"{site.url}/readyz")
        site.rooms.health.draining = True
        not_ready = await http(f"{site.url}/readyz")

    assert (alive.status, alive.json) == (200, {"status": "ok"})
    assert (ready.status, ready.json) == (200, {"status": "ready"})
    assert not_ready.status == 503
    assert not_ready.json["reasons"] == ["the gateway is draining before it stops"]
    assert int(not_ready.headers["Retry-After"]) > 0


async def test_a_reader_that_leaves_a_stream_stops_nothing(tmp_path: Path) -> None:
    rest = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply(["all ", "of it"], gates={2: rest})

    async with talking(script, tmp_path) as (model, site, client):
        with anyio.move_on_after(0.5):
            await post_chat(site.url, "hi", key="k", stream=True)
        rest.set()
        answer = await post_chat(site.url, "hi", key="k", stream=True)
        sessions = await client.call("session.list")

    assert json.loads(answer.body.split(b"data: ")[-1])["response"] == "all of it"
    assert len(model.requests) == 1
    assert len(sessions["sessions"]) == 1
