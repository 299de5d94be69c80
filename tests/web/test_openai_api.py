"""/v1 over HTTP: models, whole and streamed answers, conversations, repeated keys, callers that disconnect."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest

from gateway.domain.errors import ModelFailed
from gateway.domain.ids import AgentId
from gateway.domain.messages import Spent, ToolCall, Usage
from gateway.domain.model import FinishReason, TextDelta
from gateway.domain.ports import Model
from gateway.sessions.lanes import QueuePolicy
from gateway.web.chat import ChatApi
from gateway.web.openai import OpenAiApi
from gateway.web.settings import TokenDef, WebSettings
from tests.fakes.client import HttpAnswer, http, post_chat
from tests.fakes.clock import CountingIds
from tests.fakes.model import GatedModel, ScriptedModel, StallingModel, says
from tests.fakes.store import open_memory
from tests.fakes.tools import FakeTool
from tests.sessions.stage import AGENT, Stage, staged
from tests.web.running import running

OTHER = replace(AGENT, id=AgentId("b"))
HI: list[dict[str, object]] = [{"role": "user", "content": "hi"}]


def token(name: str, *scopes: str) -> TokenDef:
    return TokenDef(name, f"the-token-of-{name}", frozenset(scopes))


TOKENS = (token("alice", "chat"), token("bob", "chat", "agent:b"), token("carol", "read"))


@dataclass
class Site:
    url: str
    stage: Stage

    async def ask(self, path: str = "/models", *, by: str = "alice", **more: Any) -> HttpAnswer:
        return await http(f"{self.url}/v1{path}", token=f"the-token-of-{by}", **more)

    async def complete(
        self,
        *,
        by: str = "alice",
        key: str | None = None,
        session: str | None = None,
        **body: object,
    ) -> HttpAnswer:
        named = {"idempotency-key": key, "x-exogate-session": session}
        return await self.ask(
            "/chat/completions",
            by=by,
            method="POST",
            headers={name: value for name, value in named.items() if value is not None},
            body=json.dumps({"model": "a", "messages": HI, **body}).encode(),
        )


@asynccontextmanager
async def site(model: Model | None = None, **more: Any) -> AsyncIterator[Site]:
    agents = (AGENT, OTHER)
    usual = ScriptedModel(says("ho"))
    async with open_memory() as stores, staged(model or usual, stores, agents=agents, **more) as it:
        routes = (
            *OpenAiApi(it.front, it.stateless, 1_700_000_000).routes(),
            *ChatApi(it.front, CountingIds(500)).routes(),
        )
        async with running(WebSettings(port=0, tokens=TOKENS), routes=routes) as server:
            yield Site(f"http://{server.address}", it)


def headers(answer: HttpAnswer) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def lines(answer: HttpAnswer) -> list[Any]:
    """What a stream says; its last word as it is."""
    blocks = answer.body.decode().split("\n\n")
    told = [block.removeprefix("data: ") for block in blocks[:-1]]
    return [one if one == "[DONE]" else json.loads(one) for one in told]


def error(answer: HttpAnswer) -> tuple[int, str, str | None, str]:
    told = answer.json["error"]
    return answer.status, told["type"], told["param"], told["code"]


async def test_models_are_the_agents_within_reach() -> None:
    async with site(closed={OTHER.id: frozenset({"bob"})}) as it:
        alices, bobs = await it.ask(), await it.ask(by="bob")
        one, foreign = await it.ask("/models/a"), await it.ask("/models/b")
        nowhere, asked = await it.ask("/models/a", by="bob"), await it.complete(model="b")

    shown = {"id": "a", "object": "model", "created": 1_700_000_000, "owned_by": "exogate"}
    assert alices.json == {"object": "list", "data": [shown]}
    assert [model["id"] for model in bobs.json["data"]] == ["b"]
    assert one.json == shown
    for refused in (foreign, nowhere, asked):
        assert error(refused) == (404, "invalid_request_error", None, "model_not_found")


@pytest.mark.parametrize("path", ["/models", "/models/a", "/chat/completions"])
async def test_it_takes_a_token_that_may_chat(path: str) -> None:
    body = json.dumps({"model": "a", "messages": HI}).encode()
    more: dict[str, Any] = {"method": "POST", "body": body} if path.startswith("/chat") else {}
    async with site() as it:
        reader, stranger = await it.ask(path, by="carol", **more), await it.ask(path, by="", **more)

    assert error(reader) == (403, "permission_error", None, "forbidden")
    assert error(stranger) == (401, "authentication_error", None, "unauthorized")


@pytest.mark.parametrize(
    ("path", "more", "told"),
    [
        ("/nothing", {}, (404, "invalid_request_error", None, "not_found")),
        ("/models", {"method": "PUT"}, (405, "invalid_request_error", None, "method_not_allowed")),
        (
            "/chat/completions",
            {"method": "POST", "body": b"{"},
            (400, "invalid_request_error", None, "invalid_json"),
        ),
        (
            "/chat/completions",
            {"method": "POST", "body": b"[]"},
            (400, "invalid_request_error", None, "invalid_request"),
        ),
        (
            "/chat/completions",
            {"method": "POST", "body": b" " * 5_000_000},
            (413, "invalid_request_error", None, "body_too_large"),
        ),
    ],
)
async def test_every_error_has_the_shape_that_sdks_know(
    path: str, more: dict[str, Any], told: tuple[int, str, None, str]
) -> None:
    async with site() as it:
        answer = await it.ask(path, **more)

    assert error(answer) == told


async def test_an_answer_is_whole_and_tells_the_usage_of_all_calls_but_no_tools() -> None:
    model = ScriptedModel(says("look", ToolCall("1", "echo"), tokens=10), says("ho", tokens=4))
    helped = FakeTool(spends=Spent(Usage(100, 10), "fake", "small"))
    async with site(model, tool=helped) as it:
        answer = await it.complete()

    body = answer.json
    run_id = headers(answer)["x-exogate-run"]
    assert body == {
        "id": f"chatcmpl-{run_id}",
        "object": "chat.completion",
        "created": 1767268800,
        "model": "a",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "look\n\nho", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 107, "completion_tokens": 17, "total_tokens": 124},
    }


async def test_a_stream_has_a_first_and_a_last_chunk_and_is_the_whole_text() -> None:
    script = [says("look", ToolCall("1", "echo")), says("ho")]
    async with site(ScriptedModel(*script, *script)) as it:
        whole = await it.complete()
        answer = await it.complete(stream=True)

    told = lines(answer)
    assert headers(answer)["content-type"].startswith("text/event-stream")
    assert {(one["object"], one["model"]) for one in told[:-1]} == {("chat.completion.chunk", "a")}
    assert {one["id"] for one in told[:-1]} == {f"chatcmpl-{headers(answer)['x-exogate-run']}"}
    choices = [one["choices"][0] for one in told[:-1]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "stop")
    pieces = "".join(choice["delta"].get("content", "") for choice in choices)
    assert pieces == whole.json["choices"][0]["message"]["content"]
    assert told[-1] == "[DONE]"


async def test_a_stream_tells_its_usage_last_if_asked() -> None:
    async with site() as it:
        answer = await it.complete(stream=True, stream_options={"include_usage": True})

    *before, last, done = lines(answer)
    assert (last["choices"], last["usage"]["total_tokens"], done) == ([], 10, "[DONE]")
    assert {one["usage"] for one in before} == {None}


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_a_reply_that_did_not_come_to_its_own_end_says_so(finish: FinishReason) -> None:
    async with site(ScriptedModel(replace(says("ho"), finish=finish))) as it:
        answer = await it.complete(max_tokens=1)

    assert answer.json["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_the_first_word_is_an_error_of_its_own(stream: bool) -> None:
    failed = ModelFailed("fake", "rate", "429", retry_after_s=90.0)
    async with site(ScriptedModel(failed)) as it:
        answer = await it.complete(stream=stream)

    told = headers(answer)
    assert error(answer) == (502, "server_error", None, "provider_error")
    assert (told["retry-after"], told["x-should-retry"]) == ("90", "false")
    assert told["x-exogate-run"].startswith("r_")


async def test_what_fails_later_ends_the_stream_without_its_last_word() -> None:
    async def breaks(_request: object, hear: Any) -> Any:
        hear(TextDelta("half"))
        raise ModelFailed("fake", "truncated", "cut", started=True)

    async with site(ScriptedModel(breaks)) as it:
        answer = await it.complete(stream=True)

    *_, half, last = lines(answer)
    assert half["choices"][0]["delta"] == {"content": "half"}
    assert last["error"]["code"] == "provider_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_leaves_lets_the_model_go(stream: bool) -> None:
    model = StallingModel(TextDelta("half"))
    body = json.dumps({"model": "a", "messages": HI, "stream": stream}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer the-token-of-alice\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with site(model) as it:
        host, port = it.url.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as socket:
            await socket.send(head.encode() + body)
            await model.reached.wait()
        with anyio.fail_after(60):
            await it.stage.stateless.wait_idle()

    assert model.cancelled


async def test_beyond_what_may_work_at_once_it_is_busy() -> None:
    model = GatedModel()
    async with site(model, width=1) as it, anyio.create_task_group() as group:
        group.start_soon(it.complete)
        await model.until_asked(1)
        refused = await it.complete()
        model.let()

    assert error(refused) == (503, "server_error", None, "busy")
    assert headers(refused)["retry-after"] == "1"


async def test_who_waits_when_the_gateway_stops_is_told_so() -> None:
    model, answers = StallingModel(TextDelta("half")), dict[bool, HttpAnswer]()
    async with site(model) as it:

        async def ask(stream: bool) -> None:
            answers[stream] = await it.complete(stream=stream)

        for stream in (False, True):
            model.reached = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(ask, stream)
                await model.reached.wait()
                it.stage.stateless.abandon_all()

    assert error(answers[False]) == (503, "server_error", None, "stopping")
    assert b'"code":"stopping"' in answers[True].body
    assert b"[DONE]" not in answers[True].body


async def test_a_session_goes_on_and_is_one_of_the_conversations() -> None:
    model = ScriptedModel(says("one"), says("two"), says("three"))
    ignored = {"role": "system", "content": "Be brief."}
    async with site(model) as it:
        await it.complete(session="s", messages=[ignored, *HI])
        again = await it.complete(session="s", messages=[ignored, *HI, ignored, *HI])
        bearer = "the-token-of-alice"
        page = await http(f"{it.url}/api/conversations/s/messages", token=bearer)
        third = await post_chat(it.url, "hi", conversation_id="s", token=bearer)
        erased = await http(f"{it.url}/api/conversations/s", method="DELETE", token=bearer)

    texts = [message["content"] for message in page.json["messages"]]
    assert texts == ["hi", "one", "hi", "two"]
    assert again.json["choices"][0]["message"]["content"] == "two"
    assert third.json["response"] == "three"
    assert erased.json["erased"][0]["messages"] == 6


async def test_a_session_goes_on_without_its_caller() -> None:
    model, answers = GatedModel(), list[HttpAnswer]()
    async with site(model) as it:
        with anyio.CancelScope() as leaving:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: it.complete(session="s", key="k"))
                await model.until_asked(1)
                leaving.cancel()
        model.let()
        await it.stage.lanes.wait_idle()
        answers.append(await it.complete(session="s", key="k"))

    assert answers[0].json["choices"][0]["message"]["content"] == "to hi"
    assert len(model.questions) == 1


async def test_who_is_answered_together_with_a_later_message_hears_that_answer() -> None:
    model, answers = GatedModel(), dict[str, HttpAnswer]()

    async with site(model, manner=QueuePolicy("collect")) as it:

        async def ask(text: str) -> None:
            said = [{"role": "user", "content": text}]
            answers[text] = await it.complete(session="s", messages=said)

        async with anyio.create_task_group() as group:
            for waiting, text in enumerate("123"):
                group.start_soon(ask, text)
                await it.stage.until_pending(waiting + 1)
            await model.until_asked(1)
            model.let(2)

    told = [answers[text].json["choices"][0]["message"]["content"] for text in "123"]
    assert told == ["to 1", "to 2 3", "to 2 3"]


@pytest.mark.parametrize("param", ["temperature", "max_tokens", "max_completion_tokens"])
async def test_a_session_has_the_replies_of_its_agent(param: str) -> None:
    async with site() as it:
        answer = await it.complete(session="s", **{param: 1})  # type: ignore[arg-type]  # by name

    assert error(answer) == (400, "invalid_request_error", param, "unsupported_value")


@pytest.mark.parametrize("session", [None, "s"])
async def test_the_same_key_repeats_the_answer_whole_or_as_a_stream(session: str | None) -> None:
    model = ScriptedModel(says("one"), says("two"))
    async with site(model) as it:
        first = await it.complete(session=session, key="k")
        await it.stage.until_idle()
        again = await it.complete(session=session, key="k")
        streamed = await it.complete(session=session, key="k", stream=True)
        said = [{"role": "user", "content": "ho"}]
        other = await it.complete(session=session, key="k", messages=said)
        foreign = await it.complete(session=session, key="k", by="bob", model="b")

    assert again.json == first.json
    assert lines(streamed)[0]["id"] == first.json["id"]
    assert lines(streamed)[1]["choices"][0]["delta"] == {"content": "one"}
    assert error(other) == (409, "invalid_request_error", None, "conflict")
    assert foreign.json["choices"][0]["message"]["content"] == "two"


@pytest.mark.parametrize("named", [{"key": "k" * 257}, {"session": "s" * 257}, {"session": ""}])
async def test_a_name_that_is_too_long_or_empty_is_refused(named: dict[str, str]) -> None:
    async with site() as it:
        answer = await it.complete(**named)

    assert error(answer) == (400, "invalid_request_error", None, "invalid_request")
