"""chat.*: a listener of a run gets all of its events, and other users get none."""

import gc
from collections.abc import Mapping
from typing import Any
from weakref import ref

import anyio
import pytest

from gateway.api.errors import Forbidden, InvalidParams, failure_of
from gateway.domain.errors import BadSessionKey, Conflict, NotFound, NotOfProject
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, TextDelta
from gateway.domain.ports import Stores
from gateway.web.chat import PAGE_CHARACTERS
from gateway.web.identity import Principal
from gateway.web.rpc import Handler, handlers_of
from gateway.web.socket import REPLAYED_AT_ONCE
from tests.fakes.model import ScriptedModel, StallingModel, says
from tests.fakes.store import open_memory
from tests.sessions.stage import AGENT, Stage, staged
from tests.web.methods.calling import FakePeer, call, chat_methods

BOB = Principal("bob", frozenset({"chat"}))
ONLY_Z = Principal("p", frozenset({"chat"}), agents=frozenset({"z"}))


def chat(stage: Stage) -> Mapping[str, Handler]:
    return handlers_of(chat_methods(stage.front))


async def talkative(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
    for n in range(3 * REPLAYED_AT_ONCE):
        on_delta(TextDelta(f"{n} "))
    return says("")


async def test_the_sender_hears_its_run_after_the_answer_and_then_no_more() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        peer = FakePeer()
        sent = await call(chat(stage), "chat.send", on=peer, content="hi")
        await stage.lanes.wait_idle()

    assert sent["session_key"] == "a:websocket:p:main"
    assert (sent["agent_id"], sent["matched_by"], sent["duplicate"]) == ("a", "default", False)
    assert [event["seq"] for event in peer.events] == list(range(1, len(peer.events) + 1))
    assert peer.events[-1]["type"] == "done"
    assert not peer.streams


@pytest.mark.parametrize("after", [0, 1, REPLAYED_AT_ONCE, 3 * REPLAYED_AT_ONCE])
@pytest.mark.parametrize("ended", [False, True])
async def test_resuming_gives_the_rest_without_a_gap(after: int, *, ended: bool) -> None:
    release = anyio.Event()

    async def holds(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        reply = await talkative(request, on_delta)
        await release.wait()
        return reply

    async with open_memory() as stores, staged(ScriptedModel(holds), stores) as stage:
        run_id = await stage.say("hi")
        while len(stage.heard[run_id]) < 3 * REPLAYED_AT_ONCE:
            await anyio.lowlevel.checkpoint()
        if ended:
            release.set()
            await stage.lanes.wait_idle()
        peer = FakePeer()
        result = await call(chat(stage), "chat.resume", on=peer, run_id=run_id, after_seq=after)
        release.set()
        await stage.lanes.wait_idle()

    assert result["live"] is not ended
    assert [event["seq"] for event in peer.events] == list(
        range(after + 1, stage.heard[run_id][-1]["seq"] + 1)
    )


async def test_who_leaves_is_forgotten_and_the_run_goes_on() -> None:
    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        peer = FakePeer()
        sent = await call(chat(stage), "chat.send", on=peer, content="hi")
        await stalling.reached.wait()
        peer.end()
        heard = len(peer.events)
        run = stage.front.live.get(sent["run_id"])
        assert run is not None
        result = await call(chat(stage), "chat.abort", run_id=sent["run_id"])
        await stage.lanes.wait_idle()
        again = await call(chat(stage), "chat.abort", run_id=sent["run_id"])

    assert result["aborted"] is True
    assert again["aborted"] is False
    assert len(peer.events) == heard
    assert run.ended


async def test_a_run_that_was_followed_leaves_nothing_to_the_garbage_collector() -> None:
    model = ScriptedModel(says("ok"))
    gc.collect()
    gc.disable()
    try:
        async with open_memory() as stores, staged(model, stores) as stage:
            sent = await call(chat(stage), "chat.send", on=FakePeer(), content="hi")
            run = ref(stage.front.live[sent["run_id"]])
            await stage.lanes.wait_idle()
            await anyio.wait_all_tasks_blocked()
            request = model.asked.pop()
            assert request.record is not None
            journal = ref(request.record)
            del request
            left = [one() for one in (run, journal)]
    finally:
        gc.enable()

    assert left == [None, None]


async def _one_run(stores: Stores) -> str:
    async with staged(ScriptedModel(says("ok")), stores) as stage:
        return await stage.say("hi")


@pytest.mark.requirement("S-004-Conv-04")
@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("chat.resume", {"run_id": "r_" + "1".zfill(26)}),
        ("chat.abort", {"run_id": "r_" + "1".zfill(26)}),
        ("chat.history", {"session_key": "a:websocket:p:main"}),
    ],
)
async def test_anothers_object_is_like_one_that_is_not_there(
    method: str, names: dict[str, Any]
) -> None:
    async with open_memory() as stores:
        await _one_run(stores)
        async with staged(ScriptedModel(says("ok")), stores, ids_from=50) as stage:
            with pytest.raises(NotFound):
                await call(chat(stage), method, by=BOB, **names)
            with pytest.raises(NotFound):
                await call(chat(stage), method, by=ONLY_Z, **names)
            await call(chat(stage), method, **names)


async def test_nobody_speaks_as_another_or_to_an_agent_out_of_reach() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        send = chat(stage)
        foreigners: list[dict[str, Any]] = [{"channel": "telegram"}, {"account": "alice"}]
        for foreign in foreigners:
            with pytest.raises(Forbidden, match="impersonate"):
                await call(send, "chat.send", by=BOB, content="hi", **foreign)
        with pytest.raises(Forbidden, match="does not reach"):
            await call(send, "chat.send", by=ONLY_Z, content="hi")
        assert await stores.sessions.count_sessions() == 0


@pytest.mark.requirement("S-000-Exchange-05", "S-004-ACtx-03")
@pytest.mark.parametrize(
    "wrong",
    [
        {"content": ""},
        {"content": " \n"},
        {"content": 7},
        {},
        {"content": "x", "peer": ""},
        {"content": "x", "peer": "x" * 300},
        {"content": "x", "limits": {"token_budget": 0}},
        {"content": "x", "limits": {"max_iterations": 2.5}},
        {"content": "x", "limits": {"timeout_seconds": "20"}},
        {"content": "x", "limits": {"error_limit": 2}},
        {"content": "x", "chanel": "y"},
    ],
)
async def test_wrong_parameters_are_refused_and_cost_nothing(wrong: dict[str, Any]) -> None:
    model = ScriptedModel(says("never"))
    async with open_memory() as stores, staged(model, stores) as stage:
        with pytest.raises(InvalidParams):
            await call(chat(stage), "chat.send", **wrong)

    assert model.asked == []


async def test_one_key_for_other_content_is_a_conflict_and_for_the_same_a_duplicate() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        send = chat(stage)
        first = await call(send, "chat.send", content="hi", idempotency_key="k")
        peer = FakePeer()
        again = await call(send, "chat.send", on=peer, content="hi", idempotency_key="k")
        others: list[dict[str, Any]] = [{"content": "ho"}, {"content": "hi", "peer": "other"}]
        for other in others:
            with pytest.raises(Conflict):
                await call(send, "chat.send", **other, idempotency_key="k")

    assert again == {**first, "duplicate": True}
    assert peer.events == []


async def test_an_unknown_place_to_continue_from_is_not_found() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        with pytest.raises(NotFound):
            await call(chat(stage), "chat.send", content="hi", context_id="m_nowhere")
        with pytest.raises(NotFound):
            await call(chat(stage), "chat.resume", run_id="r_nowhere")
        with pytest.raises(BadSessionKey):
            await call(chat(stage), "chat.history", session_key="nonsense")


async def test_a_second_resume_takes_the_place_of_the_first() -> None:
    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        peer = FakePeer()
        sent = await call(chat(stage), "chat.send", on=peer, content="hi")
        await stalling.reached.wait()
        seen = len(peer.events)
        for _ in range(5):
            await call(chat(stage), "chat.resume", on=peer, run_id=sent["run_id"], after_seq=seen)
        await call(chat(stage), "chat.abort", run_id=sent["run_id"])
        await stage.lanes.wait_idle()

    seqs = [event["seq"] for event in peer.events]
    assert seqs == list(range(1, len(seqs) + 1))
    assert not peer.streams


async def test_a_page_of_history_is_bounded_by_its_size_too() -> None:
    long = "x" * (PAGE_CHARACTERS // 3)
    async with open_memory() as stores, staged(ScriptedModel(says(long)), stores) as stage:
        for _ in range(4):
            run_id = await stage.say(long)
        await stage.lanes.wait_idle()
        key = stage.heard[run_id][0]["session_key"]
        page = await call(chat(stage), "chat.history", session_key=key)
        before = page["messages"][0]["id"]
        rest = await call(chat(stage), "chat.history", session_key=key, before=before)

    assert (len(page["messages"]), page["more"]) == (3, True)
    assert (len(rest["messages"]), rest["more"]) == (3, True)
    assert page["messages"][-1]["id"] == page["head"]


async def test_reading_everything_is_not_a_right_to_change_it() -> None:
    reader = Principal("reader", frozenset({"chat", "read"}))
    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        run_id = await stage.say("hi")
        await stalling.reached.wait()
        with pytest.raises(Forbidden, match="not change it"):
            await call(chat(stage), "chat.abort", by=reader, run_id=run_id)
        await call(chat(stage), "chat.resume", by=reader, run_id=run_id)
        await call(chat(stage), "chat.abort", run_id=run_id)
        await stage.lanes.wait_idle()


@pytest.mark.requirement("S-001-System-02", "S-001-System-03")
async def test_what_was_told_beside_an_answer_is_in_the_history_and_no_model_sees_it() -> None:
    model = ScriptedModel(StallingModel(TextDelta("half")).reply, says("whole"))
    async with open_memory() as stores, staged(model, stores) as stage:
        first = await stage.say("hi")
        await anyio.wait_all_tasks_blocked()
        run = stage.front.live.get(first)
        assert run is not None
        await stage.front.abort(run, at_once=True)
        await stage.lanes.wait_idle()
        await stage.say("again")
        await stage.lanes.wait_idle()
        history = await call(chat(stage), "chat.history", session_key="a:websocket:p:main")

    cut = history["messages"][1]
    assert (cut["content"], cut["status"]) == ("half", "cancelled")
    told = [{"system_type": "notice", "system_message": "Cancelled by user"}]
    assert cut["notices"] == told
    assert "notices" not in history["messages"][3]
    assert [said.text for said in model.asked[1].messages] == ["hi", "half", "again"]


async def test_a_summary_is_no_part_of_the_history_and_hides_nothing_behind_it() -> None:
    key = SessionKey(AgentId("a"), "websocket", "p")
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        for text in ("one", "two"):
            await stage.say(text)
            await stage.until_idle()
            path = await stores.sessions.path(key, limit=1)
            node = Node(
                *(NodeId(f"s-{text}"), None, RunId("r"), Message("summary", "{}")),
                created_at=stage.clock.now(),
                token_count=1,
            )
            assert await stores.sessions.append_summary(key, node, expected=path.head)
            stage.front.episodes.forget(key)
        whole = await call(chat(stage), "chat.history", session_key=str(key))
        pages = [await call(chat(stage), "chat.history", session_key=str(key), limit=1)]
        while pages[-1]["more"]:
            before = pages[-1]["messages"][0]["id"]
            page = await call(
                chat(stage), "chat.history", session_key=str(key), limit=1, before=before
            )
            pages.append(page)

    assert [one["content"] for one in whole["messages"]] == ["one", "ok", "two", "ok"]
    assert [page["messages"][0]["content"] for page in pages] == ["ok", "two", "ok", "one"]
    assert pages[0]["head"] == "s-two"


@pytest.mark.requirement("S-000-Context-10")
async def test_an_agent_of_anothers_project_accepts_nothing() -> None:
    closed = {AGENT.id: frozenset({"ann"})}
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores, closed=closed) as stage:
        for asked in (None, AGENT.id):
            with pytest.raises(NotOfProject) as refused:
                await call(chat(stage), "chat.send", content="hi", agent=asked)
            assert (failure_of(refused.value).status, failure_of(refused.value).rpc) == (
                403,
                -32002,
            )
        with pytest.raises(NotFound):  # as one that is not there, for a token of another agent
            await call(chat(stage), "chat.send", by=ONLY_Z, content="hi", agent=AGENT.id)
        nothing = await stores.sessions.count_sessions()
        sent = await call(chat(stage), "chat.send", content="hi", account="ann")
        await stage.until_idle()

    assert nothing == 0
    assert sent["session_key"] == "a:websocket:ann:main"
