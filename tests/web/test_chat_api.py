"""POST /api/chat: the stored answer for a repeated key, and an honest word when it is gone."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from pydantic_core import from_json, to_json

from gateway.store.memory import open_memory
from gateway.web.chat_api import ChatApi
from gateway.web.settings import WebSettings
from tests.fakes.client import HttpAnswer, http, post_chat
from tests.fakes.clock import CountingIds
from tests.fakes.model import ScriptedModel, says
from tests.sessions.stage import Stage, staged
from tests.web.running import running

ECHO_TOKENS = 10


@asynccontextmanager
async def api(*texts: str) -> AsyncIterator[tuple[str, Stage]]:
    model = ScriptedModel(*(says(text, tokens=ECHO_TOKENS) for text in texts))
    async with open_memory() as stores, staged(model, stores) as stage:
        routes = ChatApi(stage.front, to_json, from_json, CountingIds(500)).routes()
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
        "model",
        "execution_time_ms",
        "reason",
        "partial",
        "tool_calls_made",
    }
    assert (first.json["response"], first.json["tokens_used"]) == ("one", ECHO_TOKENS)
    assert second.json["conversation_id"] == first.json["conversation_id"]


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
