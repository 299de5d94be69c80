"""session.create, .label, .checkpoint, .close, .import and .export, each by its owner."""

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.api.errors import Forbidden, InvalidParams
from gateway.domain.errors import NotFound, UnknownAgent
from gateway.domain.sessions import ImportRefused
from gateway.web.identity import Principal
from gateway.web.memory import MemoryMethods
from gateway.web.rpc import Handler, handlers_of
from gateway.web.sessions import SessionMethods
from tests.fakes.clock import CountingIds
from tests.fakes.model import ScriptedModel, says
from tests.fakes.recall import FakeRecall
from tests.fakes.store import open_memory
from tests.sessions.stage import Stage, staged
from tests.web.methods.calling import call, chat_methods
from tests.web.methods.test_memory import ready

KEY, OTHER = "a:websocket:p:main", "a:websocket:p:other"
BOB = Principal("bob", frozenset({"chat"}))
READER = Principal("r", frozenset({"chat", "read"}))


def methods(stage: Stage) -> Mapping[str, Handler]:
    return handlers_of(SessionMethods(stage.front), chat_methods(stage.front))


async def told(stage: Stage, *texts: str, peer: str = "main") -> None:
    for text in texts:
        await stage.say(text, peer=peer)
        await stage.until_idle()


def a_message(id_: str, **more: Any) -> dict[str, Any]:
    said = {"id": id_, "role": "user", "content": "hi", "created_at": "2020-01-01T00:00:00Z"}
    return {**said, **more}


async def history(stage: Stage, key: str) -> list[dict[str, Any]]:
    page = await call(methods(stage), "chat.history", session_key=key)
    messages: list[dict[str, Any]] = page["messages"]
    return messages


@pytest.mark.requirement("S-002-CtxTree-05")
async def test_a_new_tree_begins_without_what_was_said_before() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores) as stage:
        await told(stage, "one")

        made = await call(methods(stage), "session.create", session_key=KEY)
        await told(stage, "two")
        tree = await call(methods(stage), "session.tree", session_key=KEY)

        assert made == {"session_key": KEY, "head": None}
        assert [message.text for message in model.asked[-1].messages] == ["two"]
        assert [node["parent_id"] is None for node in tree["nodes"]] == [True, False, True, False]


@pytest.mark.requirement("S-002-CtxTree-06", "S-002-CtxTree-07")
async def test_a_checkpoint_and_a_label_are_shown_in_the_tree() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await told(stage, "one")
        first, last = (one["id"] for one in await history(stage, KEY))

        await call(methods(stage), "session.label", session_key=KEY, node_id=first, label="x")
        kept = await call(methods(stage), "session.checkpoint", session_key=KEY)
        tree = await call(methods(stage), "session.tree", session_key=KEY)

        assert kept == {"node_id": last, "label": None, "checkpoint": True}
        shown = [(one["id"], one["label"], one["checkpoint"]) for one in tree["nodes"]]
        assert shown == [(first, "x", False), (last, None, True)]


@pytest.mark.requirement("S-000-Context-08")
async def test_a_closed_session_says_so_until_the_next_message() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await told(stage, "one")

        closed = await call(methods(stage), "session.close", session_key=KEY)
        shown = await call(methods(stage), "session.get", session_key=KEY)
        await told(stage, "two")
        again = await call(methods(stage), "session.get", session_key=KEY)

        assert closed == {"session_key": KEY, "state": "closed"}
        assert (shown["state"], again["state"]) == ("closed", "active")
        assert len(await history(stage, KEY)) == 4


async def test_what_was_exported_is_imported_with_its_dates_and_once() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores) as stage:
        await told(stage, "one", "two")
        messages = await history(stage, KEY)

        first = await call(methods(stage), "session.import", session_key=OTHER, messages=messages)
        again = await call(methods(stage), "session.import", session_key=OTHER, messages=messages)
        same = await call(methods(stage), "session.import", session_key=KEY, messages=messages)
        await told(stage, "three", peer="other")

        assert [one["imported"] for one in (first, again, same)] == [4, 0, 0]
        copy = (await history(stage, OTHER))[:4]
        for name in ("role", "content", "created_at", "token_count", "model", "status"):
            assert [one[name] for one in copy] == [one[name] for one in messages]
        sent = [message.text for message in model.asked[-1].messages]
        assert sent == ["one", "ok", "two", "ok", "three"]


async def test_calls_and_results_of_tools_are_imported_whole() -> None:
    asks = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"a":1}'}}
    given = [
        a_message("1"),
        a_message("2", role="assistant", content="", tool_calls=[asks]),
        a_message("3", role="tool", content="1", tool_call_id="c1", name="echo", is_error=True),
    ]
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await call(methods(stage), "session.import", session_key=KEY, messages=given)

        shown = await history(stage, KEY)
        assert shown[1]["tool_calls"] == [asks]
        assert (shown[2]["tool_call_id"], shown[2]["name"], shown[2]["is_error"]) == (
            "c1",
            "echo",
            True,
        )
        assert [one["parent_id"] for one in shown] == [None, "1", "2"]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (a_message("2", parent_id="x"), r"messages\[1\]\.parent_id"),
        (a_message("2", role="tool"), r"messages\[1\]\.tool_call_id"),
        (a_message("2", content=" "), r"messages\[1\]\.content"),
        (a_message("2", role="system"), r"messages\.1\.role"),
        (a_message("2", created_at="2020-01-01T00:00:00"), r"messages\.1\.created_at"),
        (a_message("2", token_count=0), r"messages\.1\.token_count"),
        (a_message(""), r"messages\.1\.id"),
    ],
)
async def test_bad_input_names_its_place_and_nothing_is_imported(
    message: dict[str, Any], place: str
) -> None:
    given = [a_message("1"), message]
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        with pytest.raises((ImportRefused, InvalidParams), match=place):
            await call(methods(stage), "session.import", session_key=KEY, messages=given)

        assert await stores.sessions.count_sessions() == 0


@pytest.mark.requirement("S-000-Context-09")
async def test_an_oracle_context_goes_out_and_comes_in_again() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores) as stage:
        await told(stage, "look at app/main.py", "two")
        shown = (await call(methods(stage), "session.export", session_key=KEY))["context"]
        given = {**shown, "compressed_summary": "It began well.", "key_decisions": ["use tea"]}
        given |= {"compression_count": 1, "status": "closed"}

        first = await call(methods(stage), "session.import", session_key=OTHER, context=given)
        again = await call(methods(stage), "session.import", session_key=OTHER, context=given)
        back = (await call(methods(stage), "session.export", session_key=OTHER))["context"]
        await told(stage, "three", peer="other")

        assert (first["imported"], again["imported"]) == (5, 0)
        same = ("key_decisions", "compressed_summary", "compression_count", "status", "last_model")
        assert {name: back[name] for name in same} == {name: given[name] for name in same}
        said = [(one["role"], one["content"]) for one in back["recent_exchanges"]]
        assert said == [(one["role"], one["content"]) for one in given["recent_exchanges"]]
        assert "use tea" in model.asked[-1].messages[0].text
        bad = {**given, "token_budget": 3999}
        with pytest.raises(InvalidParams, match="token_budget"):
            await call(methods(stage), "session.import", session_key=OTHER, context=bad)


async def test_nobody_changes_anothers_conversation() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await told(stage, "one")
        node = (await history(stage, KEY))[0]["id"]
        params: dict[str, dict[str, Any]] = {
            "session.create": {},
            "session.close": {},
            "session.checkpoint": {},
            "session.label": {"node_id": node, "label": "x"},
            "session.import": {"messages": [a_message("1")]},
        }

        for name, more in params.items():
            with pytest.raises(NotFound):
                await call(methods(stage), name, by=BOB, session_key=KEY, **more)
            with pytest.raises(Forbidden):
                await call(methods(stage), name, by=READER, session_key=KEY, **more)
        with pytest.raises(NotFound):
            await call(methods(stage), "session.export", by=BOB, session_key=KEY)


async def test_a_session_of_no_agent_is_not_made() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        with pytest.raises(UnknownAgent):
            await call(methods(stage), "session.create", session_key="nobody:websocket:p:main")
        with pytest.raises(InvalidParams):
            await call(methods(stage), "session.import", session_key=KEY)
        with pytest.raises(NotFound):
            await call(methods(stage), "session.close", session_key=KEY)

        assert await stores.sessions.count_sessions() == 0


async def test_to_forget_a_session_erases_what_was_said_in_it() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await told(stage, "one")
        asked = (stores.facts, FakeRecall(), stage.clock, CountingIds(), ready)
        memory = handlers_of(MemoryMethods(*asked, front=stage.front))

        would = await call(memory, "memory.forget", session_key=KEY)
        still = await history(stage, KEY)
        gone = await call(memory, "memory.forget", session_key=KEY, dry_run=False)

        assert (would["messages"], would["count"], would["tombstone"]) == (2, 0, None)
        assert len(still) == 2
        assert gone["messages"] == 2
        assert gone["tombstone"]
        assert await history(stage, KEY) == []
