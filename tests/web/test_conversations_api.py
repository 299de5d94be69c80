"""DELETE /api/conversations/{id}: one's own is gone for good, another's is not there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from pydantic_core import from_json, to_json

from gateway.domain.model import TextDelta
from gateway.store.memory import open_memory
from gateway.web.chat_api import ChatApi
from gateway.web.conversations_api import ConversationsApi
from gateway.web.settings import TokenDef, WebSettings
from tests.fakes.client import HttpAnswer, http, post_chat
from tests.fakes.clock import CountingIds
from tests.fakes.model import GatedModel, ScriptedModel, says
from tests.sessions.stage import Stage, staged
from tests.web.running import running

SETTINGS = WebSettings(
    port=0,
    tokens=(
        TokenDef("ann", "ann-" + "a" * 40, frozenset({"chat"})),
        TokenDef("bob", "bob-" + "b" * 40, frozenset({"chat"})),
    ),
)
ANN, BOB = (token.secret for token in SETTINGS.tokens)


async def erase(url: str, token: str) -> HttpAnswer:
    return await http(url, method="DELETE", token=token)


@asynccontextmanager
async def api(model: ScriptedModel | GatedModel) -> AsyncIterator[tuple[str, Stage]]:
    async with open_memory() as stores, staged(model, stores) as stage:
        chat = ChatApi(stage.front, to_json, from_json, CountingIds(500)).routes()
        routes = (*chat, *ConversationsApi(stage.front).routes())
        async with running(SETTINGS, routes=routes) as site:
            yield f"http://{site.address}", stage


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
