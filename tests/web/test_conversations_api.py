"""/api/conversations/{id}: owners read and erase their conversations; other users get not_found."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from gateway.domain.model import TextDelta
from gateway.web.chat import ChatApi
from gateway.web.settings import TokenDef, WebSettings
from tests.fakes.client import HttpAnswer, http, post_chat
from tests.fakes.clock import CountingIds
from tests.fakes.model import GatedModel, ScriptedModel, says
from tests.fakes.store import open_memory
from tests.sessions.stage import Stage, staged
from tests.web.running import running

SETTINGS = WebSettings(
    port=0,
    tokens=(
        TokenDef("ann", "ann-" + "a" * 40, frozenset({"chat"})),
        TokenDef("bob", "bob-" + "b" * 40, frozenset({"chat"})),
        TokenDef("ray", "ray-" + "r" * 40, frozenset({"chat", "read"})),
        TokenDef("max", "max-" + "m" * 40, frozenset({"metrics"})),
    ),
)
ANN, BOB, READER, METRICS = (token.secret for token in SETTINGS.tokens)


async def erase(url: str, token: str) -> HttpAnswer:
    return await http(url, method="DELETE", token=token)


@asynccontextmanager
async def api(model: ScriptedModel | GatedModel) -> AsyncIterator[tuple[str, Stage]]:
    async with open_memory() as stores, staged(model, stores) as stage:
        chat = ChatApi(stage.front, CountingIds(500)).routes()
        routes = chat
        async with running(SETTINGS, routes=routes) as site:
            yield f"http://{site.address}", stage


@pytest.mark.requirement("S-004-Conv-03")
async def test_an_erased_conversation_is_gone_and_its_id_begins_a_new_one() -> None:
    model = ScriptedModel(says("ok"))
    async with api(model) as (url, _):
        said = await post_chat(url, "kanarienvogel", token=ANN, conversation_id="a/b")
        where = f"{url}/api/conversations/a/b"

        foreign = await erase(where, BOB)
        erased = await erase(where, ANN)
        await post_chat(url, "again", token=ANN, conversation_id="a/b")

    assert said.status == 200
    assert foreign.status == 404
    assert erased.status == 200
    (one,) = erased.json["erased"]
    assert (one["session_key"], one["messages"]) == ("a:api:ann:a/b", 2)
    assert one["tombstone"]
    assert [message.text for message in model.asked[-1].messages] == ["again"]


@pytest.mark.requirement("S-004-Conv-04")
async def test_ones_own_messages_are_read_page_by_page_and_anothers_are_not_there() -> None:
    async with api(ScriptedModel(says("ok"))) as (url, stage):
        for text in ("one", "two"):
            await post_chat(url, text, token=ANN, conversation_id="a/b")
        await stage.say("hi")
        await stage.until_idle()
        where = f"{url}/api/conversations/a/b/messages"

        page = await http(f"{where}?limit=3", token=ANN)
        before = page.json["messages"][0]["id"]
        rest = await http(f"{where}?before={before}", token=ANN)
        key = page.json["session_key"]
        by_key = await http(f"{url}/api/conversations/{key}/messages", token=ANN)
        foreign = [
            await http(where, token=BOB),
            await http(f"{url}/api/conversations/{key}/messages", token=BOB),
            await http(f"{url}/api/conversations/a:websocket:p:main/messages", token=ANN),
            await http(f"{where}?before=nothing", token=ANN),
        ]
        wrong = [
            await http(f"{where}?{one}", token=ANN)
            for one in ("limit=0", "limt=3", "limit=3&limit=4")
        ]

    texts = [[one["content"] for one in got.json["messages"]] for got in (page, rest, by_key)]
    assert texts == [["ok", "two", "ok"], ["one"], ["one", "ok", "two", "ok"]]
    assert (page.json["conversation_id"], page.json["session_key"]) == ("a/b", "a:api:ann:a/b")
    assert [got.json["more"] for got in (page, rest)] == [True, False]
    assert [answer.status for answer in foreign] == [404] * 4
    assert [answer.status for answer in wrong] == [422] * 3


async def test_an_id_with_which_many_others_begin_is_found_all_the_same() -> None:
    async with api(ScriptedModel(says("ok"))) as (url, _):
        await post_chat(url, "the oldest", token=ANN, conversation_id="c")
        for number in range(500):
            await post_chat(url, "hi", token=ANN, conversation_id=f"c{number}")

        erased = await erase(f"{url}/api/conversations/c", ANN)

    assert [one["session_key"] for one in erased.json["erased"]] == ["a:api:ann:c"]


async def test_a_conversation_at_work_is_not_erased() -> None:
    model = GatedModel(TextDelta("ok"))
    async with api(model) as (url, _):
        where = f"{url}/api/conversations/c"
        async with anyio.create_task_group() as group:
            group.start_soon(partial(post_chat, url, "wait", token=ANN, conversation_id="c"))
            await model.until_asked(1)
            refused = await erase(where, ANN)
            model.let()
        erased = await erase(where, ANN)

    assert (refused.status, refused.json["error"]["type"]) == (503, "busy")
    assert "nothing was erased" in refused.json["error"]["message"]
    assert erased.status == 200


async def test_a_session_can_be_named_by_its_key_by_whoever_may_change_it() -> None:
    async with api(ScriptedModel(says("ok"))) as (url, stage):
        await stage.say("hi")
        await stage.until_idle()
        key = "a:websocket:p:main"

        refused = await erase(f"{url}/api/conversations/{key}", ANN)

    assert refused.status == 404


async def test_whoever_may_only_read_a_session_does_not_erase_it() -> None:
    async with api(ScriptedModel(says("ok"))) as (url, stage):
        await stage.say("hi")
        await stage.until_idle()
        where = f"{url}/api/conversations/a:websocket:p:main"

        read = await http(f"{where}/messages", token=READER)
        erased = await erase(where, READER)
        neither = [await http(f"{where}/messages", token=METRICS), await erase(where, METRICS)]
        again = await http(f"{where}/messages", token=READER)

    assert [one["content"] for one in read.json["messages"]] == ["hi", "ok"]
    assert (erased.status, again.json) == (403, read.json)
    assert [answer.status for answer in neither] == [403, 403]
