"""POST /api/chat: a repeated key gets the stored answer, or an error if the answer is deleted."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import anyio
import pytest
from pydantic_core import from_json

from gateway.domain.agents import Limits
from gateway.domain.errors import ModelFailed
from gateway.domain.ids import SessionKey
from gateway.domain.inbox import RunRecord
from gateway.domain.messages import ToolCall, Usage
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, TextDelta
from gateway.memory.context import PAGE
from gateway.sessions.lanes import QueuePolicy
from gateway.web.chat import ChatApi
from gateway.web.settings import WebSettings
from tests.fakes.client import HttpAnswer, http, post_chat
from tests.fakes.clock import CountingIds
from tests.fakes.counted import NODES, counted
from tests.fakes.model import GatedModel, ScriptedModel, StallingModel, says
from tests.fakes.store import open_memory
from tests.fakes.tools import FakeTool
from tests.sessions.stage import AGENT, Stage, staged
from tests.web.running import running

ECHO_TOKENS = 10


@asynccontextmanager
async def api(*texts: str) -> AsyncIterator[tuple[str, Stage]]:
    model = ScriptedModel(*(says(text, tokens=ECHO_TOKENS) for text in texts))
    async with open_memory() as stores, staged(model, stores) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            yield f"http://{site.address}", stage


def shape(answer: HttpAnswer) -> set[str]:
    return set(answer.json)


async def test_an_answer_has_the_promised_fields_and_its_conversation_goes_on() -> None:
    async with api("one", "two") as (url, _):
        first = await post_chat(url, "hi")
        second = await post_chat(url, "again", conversation_id=first.json["conversation_id"])

    assert shape(first) == {
        "response",
        "conversation_id",
        "message_id",
        "run_id",
        "tokens_used",
        "usage",
        "model",
        "execution_time_ms",
        "reason",
        "partial",
        "tool_calls_made",
    }
    assert (first.json["response"], first.json["tokens_used"]) == ("one", ECHO_TOKENS)
    assert second.json["conversation_id"] == first.json["conversation_id"]


async def test_who_is_answered_together_with_a_later_message_is_told_by_which_run() -> None:
    model = GatedModel()
    answers: dict[str, HttpAnswer] = {}

    async def ask(url: str, text: str) -> None:
        answers[text] = await post_chat(url, text, conversation_id="c")

    collect = QueuePolicy("collect")
    async with open_memory() as stores, staged(model, stores, manner=collect) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with (
            running(WebSettings(port=0), routes=routes) as site,
            anyio.create_task_group() as group,
        ):
            for waiting, text in enumerate("123"):
                group.start_soon(ask, f"http://{site.address}", text)
                await stage.until_pending(waiting + 1)
            await model.until_asked(1)
            model.let(2)

    merged, last = answers["2"].json, answers["3"].json
    assert (merged["reason"], merged["response"]) == ("merged", "")
    assert merged["merged_into"] == last["run_id"]
    assert merged["message_id"] == last["message_id"]
    assert (last["reason"], last["response"]) == ("answered", "to 2 3")


async def test_a_repeated_key_gives_the_stored_answer_until_it_is_swept() -> None:
    async with api("one", "two") as (url, stage):
        first = await post_chat(url, "hi", key="k")
        again = await post_chat(url, "hi", key="k")
        other = await post_chat(url, "ho", key="k")
        later = stage.clock.now() + timedelta(days=1)
        await stage.stores.care.sweep(before=later, limit=10)
        swept = await post_chat(url, "hi", key="k")

    assert again.json == first.json
    assert other.status == 409
    assert (swept.status, swept.json["error"]["type"]) == (404, "not_found")


async def test_a_stream_is_the_events_of_the_run() -> None:
    async with api("one") as (url, _):
        body = json.dumps({"message": "hi", "stream": True}).encode()
        answer = await http(f"{url}/api/chat", method="POST", body=body)

    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["content-type"].startswith("text/event-stream")
    assert [event["seq"] for event in answer.sse] == list(range(1, len(answer.sse) + 1))
    assert answer.sse[-1]["run_id"] == headers["x-exogate-run"]


async def test_a_conversation_may_be_called_anything() -> None:
    async with api("one") as (url, _):
        for name in ("日本語", "😀", "\u202eabc", "a:b\n", "\x85é"):
            answer = await post_chat(url, "hi", conversation_id=name)

            assert (answer.status, answer.json["conversation_id"]) == (200, name)


async def test_who_waits_when_the_gateway_stops_is_told_to_ask_again() -> None:
    stalling = StallingModel(TextDelta("half"))
    answers: list[HttpAnswer] = []

    async def ask(url: str) -> None:
        answers.append(await post_chat(url, "hi", key="k"))

    async with open_memory() as stores, staged(stalling, stores) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with (
            running(WebSettings(port=0), routes=routes) as site,
            anyio.create_task_group() as group,
        ):
            group.start_soon(ask, f"http://{site.address}")
            await stalling.reached.wait()
            for run in tuple(stage.front.live.values()):
                run.publish(is_over=False)
        stage.lanes._group.cancel_scope.cancel()

    assert answers[0].status == 503
    assert answers[0].json["error"]["retryable"] is True
    assert "r_" in answers[0].json["error"]["message"]


async def test_a_busy_model_service_says_when_to_come_back() -> None:
    busy = ModelFailed("fake", "rate", "429", retry_after_s=90.0)
    async with open_memory() as stores, staged(ScriptedModel(busy), stores) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            answer = await post_chat(f"http://{site.address}", "hi")

    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert (answer.status, headers["retry-after"]) == (502, "90")
    assert answer.json["error"]["retry_after_s"] == 90.0


@pytest.mark.requirement("S-004-Err-01")
async def test_an_error_tells_a_program_what_failed_and_a_user_no_word_of_the_provider() -> None:
    words = "key sk-1 of org-77 at http://10.0.0.7/ is bad"
    broke = ModelFailed("fake", "server", words, status=500)
    async with open_memory() as stores, staged(ScriptedModel(broke), stores) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            answer = await post_chat(f"http://{site.address}", "hi")

    error = answer.json["error"]
    assert (error["error_type"], error["type"]) == ("provider_error", "provider_error")
    assert (error["provider"], error["provider_status"]) == ("fake", 500)
    assert error["user_facing_message"] == error["message"]
    assert "had an internal error" in error["message"]
    assert datetime.fromisoformat(error["timestamp"]).utcoffset() == timedelta(0)
    assert not any(word in str(answer.json) for word in ("sk-1", "org-77", "10.0.0.7"))


@pytest.mark.requirement("S-004-Result-02")
async def test_calls_are_listed_as_they_were_made_whichever_ended_first() -> None:
    async def late(_arguments: object) -> str:
        await anyio.wait_all_tasks_blocked()
        return "here"

    calls = (ToolCall("1", "echo", "{}"), ToolCall("2", "nothing", "{}"))
    model, tool = ScriptedModel(says("", *calls), says("done")), FakeTool("echo", late)
    async with open_memory() as stores, staged(model, stores, tool=tool) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            url = f"http://{site.address}"
            answer = await post_chat(url, "hi")
            ended = await stage.front.run(answer.json["run_id"])

    assert isinstance(ended, RunRecord)
    told = [from_json(event) for event in ended.log.split(b"\n")]
    results = [one["tool_call"]["id"] for one in told if one["type"] == "tool_result"]
    assert results == ["2", "1"]
    made = [(one["id"], one["status"]) for one in answer.json["tool_calls_made"]]
    assert made == [("1", "success"), ("2", "error")]


@asynccontextmanager
async def counted_api() -> AsyncIterator[tuple[str, Stage, Counter[str]]]:
    async with open_memory() as opened:
        stores, calls = counted(opened)
        async with staged(ScriptedModel(says("ok")), stores) as stage:
            routes = ChatApi(stage.front, CountingIds(500)).routes()
            async with running(WebSettings(port=0), routes=routes) as site:
                yield f"http://{site.address}", stage, calls


@pytest.mark.requirement("S-004-Scale-02", "S-004-Scale-04")
@pytest.mark.parametrize("is_warm", [True, False])
async def test_a_long_conversation_costs_no_more_of_the_store_than_a_short_one(
    is_warm: bool,
) -> None:
    key, costs = SessionKey(AGENT.id, "api", "local", "c"), list[Counter[str]]()
    async with counted_api() as (url, stage, calls):
        for _ in range(100):
            if not is_warm:
                stage.front.episodes.forget(key)
            before = Counter(calls)
            await post_chat(url, "hi", conversation_id="c")
            costs.append(calls - before)
        said = (await stage.stores.sessions.path(key, limit=500)).nodes

    assert len(said) == 200
    assert costs[99] == costs[40]
    assert costs[99][NODES] == (0 if is_warm else PAGE)
    assert costs[99].total() - costs[99][NODES] <= 5


async def test_usage_is_that_of_all_calls_and_its_cost_of_those_whose_cost_is_known() -> None:
    paid = replace(says("done"), usage=Usage(30, 4, cost_usd=0.5))
    first = replace(says("", ToolCall("1", "echo", "{}")), usage=Usage(20, 3))
    async with open_memory() as stores, staged(ScriptedModel(first, paid), stores) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            answer = await post_chat(f"http://{site.address}", "hi")

    assert answer.json["usage"] == {"input_tokens": 50, "output_tokens": 7, "cost_usd": 0.5}
    assert answer.json["tokens_used"] == 57


async def test_a_very_long_answer_in_many_pieces_is_given_whole() -> None:
    pieces = [f"{n} " for n in range(50_000)]
    text = "".join(pieces)

    async def speaks(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        for start in range(0, len(pieces), 100):
            on_delta(TextDelta("".join(pieces[start : start + 100])))
        return says(text)

    first = says("let me look", ToolCall("1", "echo", "{}"))
    model = ScriptedModel(first, speaks, first, speaks)
    talkative = replace(AGENT, limits=Limits(token_budget=200_000))
    async with open_memory() as stores, staged(model, stores, agents=(talkative,)) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            url = f"http://{site.address}"
            answer = await post_chat(url, "hi")
            body = json.dumps({"message": "hi", "stream": True}).encode()
            streamed = await http(f"{url}/api/chat", method="POST", body=body)

    assert answer.json["response"] == text
    assert streamed.sse[-1]["truncated"] is True
    assert text.startswith(streamed.sse[-1]["response"])


async def test_a_request_may_tighten_any_of_the_limits() -> None:
    call = ToolCall("1", "echo", "{}")
    async with open_memory() as stores, staged(ScriptedModel(says("so", call)), stores) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            limits = {"max_iterations": 1.0, "timeout_seconds": 10**30}
            answer = await post_chat(f"http://{site.address}", "hi", limits=limits)

    assert answer.json["reason"] == "max_iterations"
    assert len(answer.json["tool_calls_made"]) == 1


async def test_a_very_long_text_before_the_last_tools_is_the_answer_if_nothing_follows() -> None:
    text = "x" * 200_000
    call = ToolCall("1", "echo", "{}")
    async with open_memory() as stores, staged(ScriptedModel(says(text, call)), stores) as stage:
        routes = ChatApi(stage.front, CountingIds(500)).routes()
        async with running(WebSettings(port=0), routes=routes) as site:
            answer = await post_chat(f"http://{site.address}", "hi", limits={"token_budget": 1_000})

    assert (answer.json["reason"], answer.json["response"]) == ("token_budget", text)
