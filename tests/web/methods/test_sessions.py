"""session.*: owners find, list and branch their sessions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.api.errors import Forbidden, InvalidParams
from gateway.domain.errors import NotFound
from gateway.domain.ids import AgentId
from gateway.web.identity import Principal
from gateway.web.rpc import Handler, handlers_of
from gateway.web.sessions import SessionMethods
from gateway.web.settings import TokenDef, WebSettings
from tests.fakes.client import http
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import open_memory
from tests.sessions.stage import AGENT, Stage, staged
from tests.web.methods.calling import call
from tests.web.running import running

KEY = "a:websocket:p:main"
BOB = Principal("bob", frozenset({"chat"}))


def sessions(stage: Stage) -> Mapping[str, Handler]:
    return handlers_of(SessionMethods(stage.front))


@pytest.mark.requirement("S-003-Session-04", "S-003-Session-05", "S-003-Session-06")
async def test_a_session_tells_its_counts_and_sums() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        before = await _said(stage, "one")
        stage.clock.move(60)
        after = await _said(stage, "two")

    assert before["message_count"] == 2
    assert after["message_count"] == 4
    assert after["token_usage"] == {"input_tokens": 10, "output_tokens": 10, "cost_usd": None}
    assert after["created_at"] == before["created_at"]
    assert after["updated_at"] > before["updated_at"]


async def _said(stage: Stage, text: str) -> dict[str, Any]:
    await stage.say(text)
    await stage.lanes.wait_idle()
    shown: dict[str, Any] = await call(sessions(stage), "session.get", session_key=KEY)
    return shown


async def test_each_sees_its_own_sessions_and_a_reader_all() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await stage.say("hi")
        await stage.lanes.wait_idle()
        mine = await call(sessions(stage), "session.list")
        bobs = await call(sessions(stage), "session.list", by=BOB)
        for method in ("session.get", "session.tree"):
            with pytest.raises(NotFound):
                await call(sessions(stage), method, by=BOB, session_key=KEY)
            with pytest.raises(NotFound):
                await call(sessions(stage), method, session_key="a:websocket:p:absent")

    assert [one["session_key"] for one in mine["sessions"]] == [KEY]
    assert bobs == {"sessions": [], "more": False}


@pytest.mark.requirement("S-002-CtxTree-02", "S-002-CtxTree-04", "S-002-E2E-10")
async def test_two_branches_do_not_see_each_other() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores) as stage:
        methods = sessions(stage)
        await stage.say("root")
        await stage.lanes.wait_idle()
        fork = (await call(methods, "session.get", session_key=KEY))["head"]
        await stage.say("left")
        await stage.lanes.wait_idle()
        left = await call(
            methods,
            "session.branch",
            session_key=KEY,
            node_id=(await call(methods, "session.get", session_key=KEY))["head"],
            label="left",
        )
        await call(methods, "session.branch", session_key=KEY, node_id=fork)
        await stage.say("right")
        await stage.lanes.wait_idle()
        back = await call(methods, "session.checkout", session_key=KEY, label="left")
        await stage.say("left again")
        await stage.lanes.wait_idle()
        tree = await call(methods, "session.tree", session_key=KEY)

    texts = [[m.text for m in request.messages if m.role == "user"] for request in model.asked]
    assert texts == [["root"], ["root", "left"], ["root", "right"], ["root", "left", "left again"]]
    assert back["head"] == left["head"]
    assert len(tree["nodes"]) == 8
    assert {node["label"] for node in tree["nodes"]} == {None, "left"}


async def test_a_checkout_names_one_place_that_exists() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await stage.say("hi")
        await stage.lanes.wait_idle()
        methods = sessions(stage)
        wrong: list[dict[str, Any]] = [{}, {"node_id": "x", "label": "y"}]
        for names in wrong:
            with pytest.raises(InvalidParams):
                await call(methods, "session.checkout", session_key=KEY, **names)
        with pytest.raises(NotFound):
            await call(methods, "session.checkout", session_key=KEY, label="nowhere")


async def test_reading_everything_is_not_a_right_to_move_head() -> None:
    reader = Principal("reader", frozenset({"chat", "read"}))
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await stage.say("hi")
        await stage.lanes.wait_idle()
        methods = sessions(stage)
        head = (await call(methods, "session.get", by=reader, session_key=KEY))["head"]
        for method in ("session.branch", "session.checkout"):
            with pytest.raises(Forbidden):
                await call(methods, method, by=reader, session_key=KEY, node_id=head)


async def test_sessions_of_agents_out_of_reach_take_no_place_on_a_page() -> None:
    other = replace(AGENT, id=AgentId("b"))
    only_a = Principal("reader", frozenset({"read"}), agents=frozenset({"a"}))
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("ok")), stores, agents=(AGENT, other)) as stage,
    ):
        await stage.say("hi")
        await stage.lanes.wait_idle()
        for number in range(5):
            await stage.say("hi", peer=str(number), requested_agent="b")
        await stage.lanes.wait_idle()
        page = await call(sessions(stage), "session.list", by=only_a, limit=2)

    assert [one["session_key"] for one in page["sessions"]] == [KEY]
    assert page["more"] is False


async def test_sessions_are_told_over_http_to_whoever_may_see_them() -> None:
    tokens = [
        TokenDef(name, f"the-token-of-{name}", frozenset({scope}))
        for name, scope in (("p", "chat"), ("bob", "chat"), ("max", "metrics"))
    ]
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await stage.say("hi")
        await stage.lanes.wait_idle()
        handlers = handlers_of(SessionMethods(stage.front))
        async with running(WebSettings(port=0, tokens=tuple(tokens)), methods=handlers) as site:
            url = f"http://{site.address}/api/sessions"
            mine, bobs, nobodys = [await http(url, token=token.secret) for token in tokens]
            one = await http(f"{url}/{KEY}", token=tokens[0].secret)
            nowhere = [
                await http(f"{url}/{KEY}", token=tokens[1].secret),
                await http(f"{url}/no-key-at-all", token=tokens[0].secret),
            ]
            none = await http(f"{url}?channel=api&limit=1", token=tokens[0].secret)
            wrong = await http(f"{url}?before=0.5", token=tokens[0].secret)

    assert mine.json == {"sessions": [one.json], "more": False}
    assert one.json["session_key"] == KEY
    assert bobs.json == none.json == {"sessions": [], "more": False}
    assert nobodys.status == 403
    assert [answer.status for answer in nowhere] == [404, 404]
    assert wrong.status == 422
