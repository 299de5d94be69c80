"""Memory helps an answer and never stops one; a replay is shown what the run was shown."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec import decode, encode
from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.errors import StoreUnavailable
from gateway.domain.events import Notice
from gateway.domain.facts import Recalled
from gateway.domain.ids import MessageId, RunId, SessionKey
from gateway.domain.inbox import NewEntry
from gateway.domain.journal import Attempt, JournalEntry, JournalUnreadable
from gateway.domain.mcp import UnreachableServer
from gateway.domain.ports import PluginSpace
from gateway.memory.context import Episode
from gateway.memory.recall import Recall, Vault
from gateway.sessions.journal import RunInputs, packed, read_inputs
from gateway.sessions.replay import Replayed
from gateway.sessions.worker import (
    FAILED,
    SWITCHED_OFF,
    TOO_SLOW,
    recall,
)
from tests.fakes.journal import FakeJournal
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import open_memory
from tests.memory.test_context import KEY, NOW, a_fact, a_turn
from tests.sessions.stage import AGENT, Stage, staged


class Memory(Recall):
    """Knows one thing, whatever it is asked."""

    def __init__(self, *known: Recalled) -> None:
        self.known = known
        self.asked: list[tuple[str, str, str | None, int]] = []
        self.was_all: list[bool] = []

    async def for_turn(
        self,
        question: str,
        key: SessionKey,
        sender: str | None,
        agent: AgentDef,
        episode: Episode,
    ) -> tuple[Recalled, ...]:
        self.asked.append((question, str(key), sender, len(episode.nodes)))
        self.was_all.append(episode.is_all)
        return self.known


class Broken(Memory):
    async def for_turn(self, *asked: object) -> tuple[Recalled, ...]:
        raise ZeroDivisionError


class Slow(Memory):
    async def for_turn(self, *asked: object) -> tuple[Recalled, ...]:
        await anyio.sleep_forever()
        raise AssertionError


def shown(model: ScriptedModel, call: int = -1) -> list[str]:
    return [message.text for message in model.asked[call].messages]


async def explained(stage: Stage, run_id: str) -> dict[str, list[list[object]]]:
    """The items of each part."""
    record = await stage.stores.inbox.find_run(RunId(run_id))
    assert record is not None
    context = json.loads(record.summary or "")["context"]
    return {kind: items for kind, _, items in context["parts"]}


async def test_what_is_remembered_is_shown_before_the_question_and_kept_nowhere() -> None:
    memory, model = Memory(a_fact(1), a_turn(2)), ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores, remember=memory) as stage:
        run = await stage.say("what?")
        await stage.until_idle()
        parts = await explained(stage, run)
        await stage.say("and now?")
        path = await stores.sessions.path(SessionKey(AGENT.id, "websocket", "p"), limit=9)

    assert memory.asked[0] == ("what?", "a:websocket:p:main", None, 0)
    assert memory.asked[1][3] == 2
    assert [len(shown(model, call)) for call in (0, 1)] == [2, 4]
    assert shown(model, 0)[0].startswith("<memory>\n- user thing_1 ")
    assert shown(model, 1)[:2] == ["what?", "ok"]
    assert [node.message.text for node in path.nodes[:2]] == ["what?", "ok"]
    assert [item[0] for item in parts["facts"]] == ["f1"]
    assert [item[2] for item in parts["recall"]] == ["words"]


@pytest.mark.parametrize(("memory", "why"), [(Broken(), FAILED), (Slow(), TOO_SLOW)])
async def test_an_answer_goes_on_without_a_memory_that_fails(memory: Memory, why: str) -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores, remember=memory) as stage:
        run = await stage.say("what?")
        await stage.until_idle()
        parts = await explained(stage, run)

    assert stage.heard[run][-1]["response"] == "ok"
    assert shown(model) == ["what?"]
    assert parts["recall"] == [["none", 0, why]]


@pytest.mark.requirement("S-003-Memory-09")
async def test_fifty_turns_stay_small_with_what_was_said_long_ago_in_the_last_one() -> None:
    model = ScriptedModel(says("That is nice to hear. " * 10))
    async with open_memory() as stores, staged(model, stores, remember=Memory(a_fact(1))) as stage:
        for turn in range(50):
            run = await stage.say(f"turn {turn}: " + "I tell you of my day. " * 10)
            await stage.until_idle()
        record = await stores.inbox.find_run(RunId(run))
    assert record is not None

    context = json.loads(record.summary)["context"]
    assert context["total_tokens"] < 5_000
    assert sum(len(text) for text in shown(model)) / 3.2 < 5_000
    assert "user thing_1" in shown(model)[-2]
    assert len(record.summary) < 6_000
    alike = [
        later.messages[: len(one.messages) - 2] == one.messages[:-2]
        for one, later in pairwise(model.asked)
    ]
    assert alike.count(False) <= 50 * 2 // 5


async def test_a_memory_that_is_switched_off_is_not_asked() -> None:
    memory, model = Memory(a_fact(1)), ScriptedModel(says("ok"))
    agent = replace(AGENT, context=ContextRules(semantic=False))
    async with (
        open_memory() as stores,
        staged(model, stores, remember=memory, agents=(agent,)) as stage,
    ):
        run = await stage.say("what?")
        await stage.until_idle()
        parts = await explained(stage, run)

    assert (memory.asked, shown(model)) == ([], ["what?"])
    assert parts["recall"] == [["none", 0, SWITCHED_OFF]]


class Notes:
    """A store with one note, or one that fails."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails

    async def list(self, space: PluginSpace, prefix: str) -> Sequence[str]:
        if self.fails:
            raise StoreUnavailable("gone")
        assert space == PluginSpace("notes", "notes", "websocket:p:main")
        return ["note|a.md"]


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_names_of_notes_depend_on_no_other_memory(*, fails: bool, has_memory: bool) -> None:
    store: Any = Notes(fails=fails)
    vault = Vault(store, "notes", is_shared=False, tools=frozenset({"vault_read"}))
    agent = replace(AGENT, context=ContextRules(semantic=has_memory))
    new, memory = NewEntry(MessageId("m"), RunId("r"), KEY, "what?", NOW), Memory(a_fact(1))

    found, missing = await recall(new, agent, Episode(None), memory, vault)
    other = await recall(new, agent, Episode(None), memory, None)

    listed = [] if fails else ["notes"]
    facts = ["fact"] if has_memory else []
    assert [one.kind for one in found] == [*listed, *facts]
    assert missing == ("" if has_memory else SWITCHED_OFF)
    assert [one.kind for one in other[0]] == facts


async def test_turns_are_looked_for_only_where_not_all_of_them_are_shown() -> None:
    memory = Memory()
    agent = replace(AGENT, context=ContextRules(recent_turns=1))
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("ok")), stores, remember=memory, agents=(agent,)) as stage,
    ):
        for turn in range(8):
            await stage.say(f"turn {turn}")
            await stage.until_idle()
        await stage.say("hello", peer="new")
        await stage.until_idle()
        stage.front.episodes.forget(SessionKey(AGENT.id, "websocket", "p", "new"))
        await stage.say("and now?", peer="new")
        await stage.until_idle()

    # Of the long session one turn is shown; of the new one all, also when it is read again.
    assert memory.was_all == [True, True, *[False] * 6, True, True]


async def replayed(change: dict[str, object]) -> Replayed:
    """A run that remembered something, from a journal in which that is changed so."""
    memory = Memory(a_fact(1), a_turn(2))
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("ok")), stores, remember=memory) as stage,
    ):
        run = RunId(await stage.say("what?"))
        await stage.until_idle()
        memory.known = ()  # what is known by now is another matter
        record = await stores.inbox.find_run(run)
        assert record is not None
        attempt = await stage.replays.attempt(record)
        lines = [("attempt", (1, [*attempt.asked])), *_changed(attempt, change).entries]
        store = FakeJournal()
        await store.append(run, 0, partial(packed, lines))
        worker = replace(stage.replays.worker, journal=store)
        return await replace(stage.replays, worker=worker).replay(record)


def _changed(attempt: Attempt, change: dict[str, object]) -> Attempt:
    """With another memory in what the run had read."""
    entries = list(attempt.entries)
    (place,) = (n for n, entry in enumerate(entries) if entry.kind == "begin")
    scene, plain = entries[place].values
    recalled = [{**one, **change} for one in plain["recalled"]]
    entries[place] = JournalEntry("begin", (scene, {**plain, "recalled": recalled}))
    return replace(attempt, entries=tuple(entries))


async def test_a_replay_is_shown_what_the_run_was_shown_then() -> None:
    assert (await replayed({})).divergence is None


async def test_another_memory_is_the_first_divergence() -> None:
    divergence = (await replayed({"text": "something else"})).divergence

    assert divergence is not None
    assert divergence.at == "call 1: message 1 of the request"


def written(read: RunInputs) -> Attempt:
    """As it stands in a journal that was read."""
    return Attempt((JournalEntry("begin", ({}, decode(encode(read.plain())))),))


@pytest.mark.parametrize("change", [{"at": "noon"}, {"session_key": "x"}, {"odd": 1}, {"fact": {}}])
def test_a_memory_that_cannot_be_read_is_said_to_be_damaged(change: dict[str, object]) -> None:
    attempt = _changed(written(RunInputs(recalled=(a_fact(1),))), change)

    with pytest.raises(JournalUnreadable, match="damaged"):
        read_inputs(attempt)


@pytest.mark.parametrize(
    "plain",
    [
        {"notices": 1},
        {"notices": [{}]},
        {"notices": [{"content": "x", "expires_at": 10**30, "batching": {}}]},
        {"lacking": [["one"]]},
        {"recalled": [None]},
    ],
)
def test_what_else_a_run_read_is_damaged_in_the_same_words(plain: dict[str, object]) -> None:
    with pytest.raises(JournalUnreadable, match="damaged"):
        read_inputs(Attempt((JournalEntry("begin", ({}, plain)),)))


NOTICE = Notice("told", id="n", to="both", data={"a": [1]}, expires_at=NOW)


@given(st.lists(st.sampled_from([a_fact(1), a_turn(2, message_id="m")]), max_size=4), st.text())
def test_what_a_run_read_comes_back_the_same(found: list[Recalled], missing: str) -> None:
    read = RunInputs(
        (NOTICE, Notice("x")), {"n": 1}, tuple(found), missing, (UnreachableServer("s", "why"),)
    )

    assert read_inputs(written(read)) == read
    assert read_inputs(written(RunInputs())) == read_inputs(Attempt(())) == RunInputs()
