"""What every store promises, whatever it is made of."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from gateway.domain.errors import Conflict, NotFound, StoreUnavailable
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.inbox import (
    TWICE,
    Accepted,
    DeliveryState,
    Ending,
    NewDelivery,
    ReceivedMessage,
)
from gateway.domain.journal import pack_text
from gateway.domain.messages import Extras, Message, Node, ToolCall, ToolResult
from gateway.domain.ports import Stores
from gateway.domain.sessions import SessionQuery
from gateway.store.faults import TextRefused
from tests.fakes.store import NOON, an_ending, an_entry, an_exchange, session_key

Open = Callable[[], AbstractAsyncContextManager[Stores]]
HOSTILE = (
    "nul \0 control \x01\x1f\x7f rtl \u202e\u2066 astral \U0001f600 combining e\u0301 \ufeff \uffff"
)


async def exchange(
    stores: Stores, name: str, *, grown_from: str | None = None, key: SessionKey | None = None
) -> bool:
    """Accepts and finishes run `run-NAME`."""
    await stores.inbox.accept(an_entry(name, key), begin=True)
    return await stores.inbox.finish(an_ending(name, key, grown_from=grown_from))


async def ids(stores: Stores, **where: str | int) -> tuple[list[str], str | None, bool]:
    path = await stores.sessions.path(session_key(), **where)  # type: ignore[arg-type]  # by name
    return [node.id for node in path.nodes], path.head, path.more


# --- accept ------------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Session-03")
async def test_a_session_is_made_by_its_first_message(opened: Open) -> None:
    async with opened() as stores:
        before = await stores.sessions.count_sessions()
        assert await stores.sessions.find_session(session_key()) is None

        await stores.inbox.accept(an_entry("a"), begin=False)
        await stores.inbox.accept(an_entry("b"), begin=False)

        assert (before, await stores.sessions.count_sessions()) == (0, 1)


async def test_messages_of_a_session_are_numbered_in_the_order_of_acceptance(opened: Open) -> None:
    other = session_key("other")
    async with opened() as stores:
        first = await stores.inbox.accept(an_entry("a"), begin=False)
        aside = await stores.inbox.accept(an_entry("x", other), begin=False)
        second = await stores.inbox.accept(an_entry("b"), begin=False)

        assert (first.seq, second.seq, aside.seq) == (1, 2, 1)
        assert [entry.new.run_id for entry in await stores.inbox.unfinished()] == [
            "run-a",
            "run-x",
            "run-b",
        ]


async def test_a_second_copy_gets_the_ids_of_the_first_and_makes_no_turn(opened: Open) -> None:
    async with opened() as stores:
        first = await stores.inbox.accept(an_entry("a", platform_id="p1", digest="d"), begin=True)

        copy = await stores.inbox.accept(an_entry("b", platform_id="p1", digest="d"), begin=True)

        assert copy == replace(first, duplicate=True)
        assert len(await stores.inbox.unfinished()) == 1


@pytest.mark.requirement("S-000-Store-02")
async def test_of_ten_copies_at_once_exactly_one_is_accepted(opened: Open) -> None:
    answers: list[Accepted] = []
    async with opened() as stores:

        async def send(number: int) -> None:
            entry = an_entry(f"c{number}", platform_id="same", digest="d")
            answers.append(await stores.inbox.accept(entry, begin=False))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(send, number)

        assert sum(not answer.duplicate for answer in answers) == 1
        assert len({answer.run_id for answer in answers}) == 1
        assert len(await stores.inbox.unfinished()) == 1
        assert await stores.sessions.count_sessions() == 1


async def test_a_copy_for_another_agent_makes_no_session(opened: Open) -> None:
    async with opened() as stores:
        first = await stores.inbox.accept(an_entry("a", platform_id="p1"), begin=False)

        moved = an_entry("b", session_key(agent="other"), platform_id="p1")
        copy = await stores.inbox.accept(moved, begin=False)

        assert (copy.duplicate, copy.session_key) == (True, first.session_key)
        assert await stores.sessions.count_sessions() == 1


async def test_the_same_key_with_other_content_is_a_conflict(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a", platform_id="p1", digest="d1"), begin=False)

        with pytest.raises(Conflict, match="p1"):
            await stores.inbox.accept(an_entry("b", platform_id="p1", digest="d2"), begin=False)

        assert len(await stores.inbox.unfinished()) == 1


async def test_a_key_counts_within_its_channel_and_account(opened: Open) -> None:
    async with opened() as stores:
        here = await stores.inbox.accept(an_entry("a", platform_id="p1"), begin=False)
        there = an_entry("b", session_key(account="other"), platform_id="p1")

        assert not (await stores.inbox.accept(there, begin=False)).duplicate
        assert not here.duplicate


async def test_messages_without_a_key_are_never_copies_of_each_other(opened: Open) -> None:
    async with opened() as stores:
        for name in "abc":
            assert not (await stores.inbox.accept(an_entry(name), begin=False)).duplicate

        assert len(await stores.inbox.unfinished()) == 3


async def test_a_run_id_serves_once(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=False)

        for key in (session_key(), session_key("new")):
            with pytest.raises(Conflict, match="run-a"):
                await stores.inbox.accept(an_entry("a", key), begin=False)

        assert await stores.sessions.count_sessions() == 1


async def test_an_entry_comes_back_as_it_was_given(opened: Open) -> None:
    entry = replace(
        an_entry("a", session_key("a:b%\n"), platform_id="p", digest="d", content=HOSTILE),
        context_id=NodeId("n0"),
        sender=HOSTILE,
        limits={"token_budget": 77, "max_iterations": 2},
        matched_by="guild",
        accepted_at=NOON + timedelta(microseconds=123_457),
    )
    async with opened() as stores:
        await stores.inbox.accept(entry, begin=False)

        [kept] = await stores.inbox.unfinished()

    assert kept.new == entry
    assert (kept.seq, kept.state, kept.attempts) == (1, "queued", 0)


# --- attempts ----------------------------------------------------------------------------------


async def test_attempts_are_counted_from_the_first_begin(opened: Open) -> None:
    async with opened() as stores:
        begun = await stores.inbox.accept(an_entry("a"), begin=True)
        await stores.inbox.accept(an_entry("b"), begin=False)

        counts = [
            await stores.inbox.begin(RunId("run-a")),
            await stores.inbox.begin(RunId("run-a")),
            await stores.inbox.begin(RunId("run-b")),
        ]

        assert (begun.attempts, counts) == (1, [2, 3, 1])
        states = {entry.new.run_id: entry.state for entry in await stores.inbox.unfinished()}
        assert states == {"run-a": "running", "run-b": "running"}


async def test_an_attempt_is_forgiven_once_and_only_while_the_run_is_open(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        run = RunId("run-a")
        await stores.journal.forgive(run)
        await stores.journal.forgive(run)
        await stores.journal.forgive(RunId("run-nobody"))
        [entry] = await stores.inbox.unfinished()
        await stores.inbox.begin(run)
        await stores.journal.forgive(run)
        [again] = await stores.inbox.unfinished()

    assert (entry.attempts, entry.forgiven) == (1, 1)
    assert (again.attempts, again.forgiven) == (2, 2)


async def test_an_unknown_run_cannot_begin_and_an_ended_one_not_again(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")

        with pytest.raises(Conflict, match="run-a"):
            await stores.inbox.begin(RunId("run-a"))
        with pytest.raises(NotFound, match="run-z"):
            await stores.inbox.begin(RunId("run-z"))


# --- finish ------------------------------------------------------------------------------------


async def test_finish_writes_nodes_sums_log_and_end_at_once(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)

        moved = await stores.inbox.finish(an_ending("a"))

        assert moved
        assert await stores.inbox.unfinished() == []
        record = await stores.inbox.find_run(RunId("run-a"))
        assert record is not None
        assert record.entry.state == "done"
        assert (record.outcome, record.log, record.summary, record.finished_at) == (
            "answered",
            b'{"type":"done"}',
            '{"turn":1}',
            NOON + timedelta(seconds=1),
        )
        session = await stores.sessions.find_session(session_key())
        assert session is not None
        assert (session.message_count, session.head) == (2, "a-2")
        assert (session.created_at, session.updated_at) == (NOON, NOON + timedelta(seconds=1))


async def test_finishing_again_changes_nothing(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        before = await stores.sessions.find_session(session_key())

        again = an_ending("a", nodes=an_exchange("other"), take_head=True)
        assert await stores.inbox.finish(again) is False

        assert await stores.sessions.find_session(session_key()) == before
        assert (await ids(stores, limit=9))[0] == ["a-1", "a-2"]


@pytest.mark.requirement("S-004-Flow-03")
async def test_merged_runs_end_in_the_same_commit(opened: Open) -> None:
    async with opened() as stores:
        for name in "abc":
            await stores.inbox.accept(an_entry(name), begin=False)

        assert await stores.inbox.finish(an_ending("c", merged=["a", "b"]))

        assert await stores.inbox.unfinished() == []
        for name in "ab":
            record = await stores.inbox.find_run(RunId(f"run-{name}"))
            assert record is not None
            assert (record.entry.state, record.outcome, record.log, record.summary) == (
                "done",
                "merged",
                b'{"type":"merged"}',
                '{"merged_into":"c"}',
            )
            assert record.finished_at == NOON + timedelta(seconds=1)
        again = an_ending("c", nodes=an_exchange("other"), merged=["a", "b"])
        assert await stores.inbox.finish(again) is False


@pytest.mark.parametrize(
    ("other", "error"), [("a", Conflict), ("x", NotFound), ("z", NotFound)], ids=["ended", "x", "z"]
)
async def test_nothing_ends_with_a_run_that_is_not_open(
    opened: Open, other: str, error: type[Exception]
) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        for name in "bc":
            await stores.inbox.accept(an_entry(name), begin=False)
        await stores.inbox.accept(an_entry("x", session_key("other")), begin=False)

        with pytest.raises(error):
            await stores.inbox.finish(an_ending("c", grown_from="a-2", merged=["b", other]))

        assert len(await stores.inbox.unfinished()) == 3
        assert (await ids(stores, limit=9))[0] == ["a-1", "a-2"]


async def test_a_dead_run_without_nodes_leaves_head_where_it_is(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        await stores.inbox.accept(an_entry("b"), begin=True)

        ending = an_ending("b", nodes=(), grown_from="a-2", state="dead")

        assert await stores.inbox.finish(ending) is False
        record = await stores.inbox.find_run(RunId("run-b"))
        assert record is not None
        assert record.entry.state == "dead"
        assert (await ids(stores, limit=9))[1] == "a-2"


@pytest.mark.parametrize(
    "wrong",
    [
        an_ending("z"),
        an_ending("a", session_key("nobody")),
        an_ending("a", grown_from="z-9"),
        an_ending("x"),
    ],
    ids=["unknown run", "unknown session", "unknown parent", "another session's run"],
)
async def test_an_ending_of_what_is_not_there_is_refused_whole(opened: Open, wrong: Ending) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        await stores.inbox.accept(an_entry("x", session_key("other")), begin=True)

        with pytest.raises(NotFound):
            await stores.inbox.finish(wrong)

        assert len(await stores.inbox.unfinished()) == 2
        assert await ids(stores, limit=9) == ([], None, False)


async def test_if_head_has_moved_meanwhile_the_answer_becomes_a_branch(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        await exchange(stores, "b", grown_from="a-2")

        moved = await exchange(stores, "c", grown_from="a-2")

        assert moved is False
        assert await ids(stores, limit=9) == (["a-1", "a-2", "b-1", "b-2"], "b-2", False)
        assert (await ids(stores, upto="c-2", limit=9))[0] == ["a-1", "a-2", "c-1", "c-2"]


async def test_take_head_moves_it_from_anywhere(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        await exchange(stores, "b", grown_from="a-2")
        await stores.inbox.accept(an_entry("c"), begin=True)

        assert await stores.inbox.finish(an_ending("c", grown_from="a-1", take_head=True))

        assert (await ids(stores, limit=9))[0] == ["a-1", "c-1", "c-2"]


async def test_an_answer_from_the_root_beside_a_conversation_is_a_branch(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")

        assert await exchange(stores, "b") is False

        assert (await ids(stores, limit=9))[1] == "a-2"
        assert (await ids(stores, upto="b-2", limit=9))[0] == ["b-1", "b-2"]


@pytest.mark.requirement("S-003-Session-04", "S-003-Session-05")
async def test_the_messages_of_a_session_only_grow(opened: Open) -> None:
    async with opened() as stores:
        for number in range(4):
            await stores.inbox.accept(an_entry(f"r{number}"), begin=True)
            ending = an_ending(
                f"r{number}",
                grown_from=f"r{number - 1}-2" if number else None,
                after_s=number + 1,
            )
            await stores.inbox.finish(ending)

        session = await stores.sessions.find_session(session_key())

    assert session is not None
    assert (session.message_count, session.created_at) == (8, NOON)
    assert session.updated_at == NOON + timedelta(seconds=4)


async def test_an_ending_that_breaks_a_rule_harms_only_itself(opened: Open) -> None:
    async with opened() as stores:
        await exchange(stores, "a")
        for name in "bcd":
            await stores.inbox.accept(an_entry(name, session_key(name)), begin=True)
        failed: list[str] = []

        async def finish(name: str, nodes: tuple[Node, ...] | None) -> None:
            try:
                await stores.inbox.finish(an_ending(name, session_key(name), nodes=nodes))
            except Exception as error:  # noqa: BLE001  # which one is up to the store
                failed.append(f"{name}: {error}")

        async with anyio.create_task_group() as group:
            group.start_soon(finish, "b", None)
            group.start_soon(finish, "c", an_exchange("a"))  # ids that are taken
            group.start_soon(finish, "d", None)

        assert [line[0] for line in failed] == ["c"]
        assert [entry.new.run_id for entry in await stores.inbox.unfinished()] == ["run-c"]
        for name in "bd":
            assert (await stores.sessions.path(session_key(name), limit=9)).head == f"{name}-2"
        assert (await stores.sessions.path(session_key("c"), limit=9)).head is None


# --- transcript --------------------------------------------------------------------------------


async def three(stores: Stores) -> None:
    """a, then b; c is a branch beside b."""
    await exchange(stores, "a")
    await exchange(stores, "b", grown_from="a-2")
    await exchange(stores, "c", grown_from="a-2")


PATHS: list[tuple[dict[str, str | int], list[str], bool]] = [
    ({"limit": 9}, ["a-1", "a-2", "b-1", "b-2"], False),
    ({"limit": 4}, ["a-1", "a-2", "b-1", "b-2"], False),
    ({"limit": 3}, ["a-2", "b-1", "b-2"], True),
    ({"limit": 1}, ["b-2"], True),
    ({"limit": 0}, [], True),
    ({"limit": 9, "upto": "b-1"}, ["a-1", "a-2", "b-1"], False),
    ({"limit": 2, "upto": "c-2"}, ["c-1", "c-2"], True),
    ({"limit": 9, "before": "b-1"}, ["a-1", "a-2"], False),
    ({"limit": 1, "before": "b-2"}, ["b-1"], True),
    ({"limit": 9, "before": "a-1"}, [], False),
]


async def test_a_path_is_the_newest_part_oldest_first(opened: Open) -> None:
    async with opened() as stores:
        await three(stores)

        for where, expected, more in PATHS:
            assert await ids(stores, **where) == (expected, "b-2", more), where


async def test_an_unknown_session_has_an_empty_path_tree_and_no_nodes(opened: Open) -> None:
    async with opened() as stores:
        assert await ids(stores, limit=9) == ([], None, False)
        assert list(await stores.sessions.tree(session_key(), limit=9)) == []
        assert await stores.sessions.node(session_key(), "a-1") is None


async def test_a_node_of_another_session_is_not_found(opened: Open) -> None:
    other = session_key("other")
    async with opened() as stores:
        await exchange(stores, "a")
        await exchange(stores, "x", key=other)

        assert await stores.sessions.node(session_key(), "x-1") is None
        for bad in ({"upto": "x-1"}, {"before": "x-1"}, {"upto": "none"}):
            with pytest.raises(NotFound):
                await ids(stores, limit=9, **bad)
        with pytest.raises(NotFound):
            await stores.sessions.move_head(session_key(), NodeId("x-1"), expected=NodeId("a-2"))


@pytest.mark.requirement("S-000-Exchange-06")
async def test_nodes_are_numbered_and_chained(opened: Open) -> None:
    async with opened() as stores:
        await three(stores)

        path = await stores.sessions.path(session_key(), limit=9)
        branch = await stores.sessions.node(session_key(), "c-1")

    assert [node.seq for node in path.nodes] == [1, 2, 3, 4]
    assert [node.parent_id for node in path.nodes] == [None, "a-1", "a-2", "b-1"]
    assert branch is not None
    assert (branch.seq, branch.parent_id) == (5, "a-2")


@pytest.mark.requirement("S-003-Message-05")
async def test_a_message_comes_back_as_it_was_given(opened: Open) -> None:
    calls = (ToolCall("t1", "clock", '{"a":"\\u0000"}'), ToolCall("t2", "x", "not json"))
    messages = [
        Message("user", HOSTILE),
        Message("assistant", "", calls, thinking=HOSTILE, extras=Extras("p", '{"s":"é"}')),
        Message("tool", result=ToolResult("t1", "clock", HOSTILE, True, 1.5)),
        Message("tool", result=ToolResult("t2", "x", "")),
        Message("assistant", "done", notices=(("notice", HOSTILE), ("limit_warning", "soon"))),
    ]
    nodes = tuple(
        Node(
            NodeId(f"n{number}"),
            None,
            RunId("run-a"),
            message,
            NOON + timedelta(microseconds=number),
            number,
            "partial" if number else "complete",
            "model-1",
        )
        for number, message in enumerate(messages)
    )
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        await stores.inbox.finish(an_ending("a", nodes=nodes))

        path = await stores.sessions.path(session_key(), limit=9)
        session = await stores.sessions.find_session(session_key())

    assert [node.message for node in path.nodes] == messages
    assert [replace(node, parent_id=None, seq=0) for node in path.nodes] == list(nodes)
    assert session is not None
    assert session.message_count == 3  # what a tool returned is nobody's message


async def test_a_megabyte_comes_back_byte_for_byte(opened: Open) -> None:
    text = "\0é\U0001f600x" * 130_000
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a", content=text), begin=True)
        await stores.inbox.finish(an_ending("a", nodes=an_exchange("a", text, text)))

        path = await stores.sessions.path(session_key(), limit=9)
        record = await stores.inbox.find_run(RunId("run-a"))

    assert [node.message.text for node in path.nodes] == [text, text]
    assert record is not None
    assert record.entry.new.content == text


async def test_half_a_surrogate_pair_is_refused_before_anything_is_written(opened: Open) -> None:
    async with opened() as stores:
        with pytest.raises(TextRefused, match="surrogate"):
            await stores.inbox.accept(an_entry("a", content="x\ud800"), begin=True)
        with pytest.raises(TextRefused):
            await stores.inbox.accept(an_entry("a", session_key("\udfff")), begin=True)
        await stores.inbox.accept(an_entry("a"), begin=True)
        with pytest.raises(TextRefused):
            await stores.inbox.finish(an_ending("a", nodes=an_exchange("a", "q", "\ud800")))
        call = Message("assistant", "", (ToolCall("t", "n", "\ud800"),))
        with pytest.raises(TextRefused):
            await stores.inbox.finish(
                an_ending("a", nodes=(replace(an_exchange("a")[0], message=call),))
            )

        assert await stores.sessions.count_sessions() == 1
        assert len(await stores.inbox.unfinished()) == 1
        assert await stores.inbox.finish(an_ending("a"))


async def test_a_tree_has_every_branch_and_no_texts(opened: Open) -> None:
    async with opened() as stores:
        await three(stores)

        tree = await stores.sessions.tree(session_key(), limit=9)
        newest = await stores.sessions.tree(session_key(), limit=2)

    assert [node.id for node in tree] == ["a-1", "a-2", "b-1", "b-2", "c-1", "c-2"]
    assert tree[4].parent_id == "a-2"
    assert {node.message.role for node in tree} == {"user", "assistant"}
    assert {node.message.text for node in tree} == {""}
    assert [node.id for node in newest] == ["c-1", "c-2"]


async def test_head_moves_only_from_where_it_was_expected(opened: Open) -> None:
    async with opened() as stores:
        await three(stores)
        transcript, key = stores.sessions, session_key()

        assert not await transcript.move_head(key, NodeId("a-2"), expected=NodeId("c-2"))
        assert not await transcript.move_head(key, NodeId("a-2"), expected=None)
        assert (await ids(stores, limit=1))[1] == "b-2"
        assert await transcript.move_head(key, NodeId("a-2"), expected=NodeId("b-2"))

        assert await ids(stores, limit=9) == (["a-1", "a-2"], "a-2", False)
        assert await exchange(stores, "d", grown_from="a-2")
        assert (await ids(stores, limit=9))[0] == ["a-1", "a-2", "d-1", "d-2"]


async def test_a_label_finds_its_node_and_moves_with_the_next_use(opened: Open) -> None:
    async with opened() as stores:
        await three(stores)
        transcript, key = stores.sessions, session_key()
        await transcript.move_head(
            key, NodeId("a-2"), expected=NodeId("b-2"), label="before the trip"
        )

        first = await transcript.node(key, "before the trip")
        await transcript.move_head(
            key, NodeId("c-2"), expected=NodeId("a-2"), label="before the trip"
        )
        second = await transcript.node(key, "before the trip")
        old = await transcript.node(key, "a-2")

    assert first is not None
    assert (first.id, first.label) == ("a-2", "before the trip")
    assert second is not None
    assert second.id == "c-2"
    assert old is not None
    assert old.label is None


async def test_a_failed_move_labels_nothing(opened: Open) -> None:
    async with opened() as stores:
        await three(stores)

        await stores.sessions.move_head(session_key(), NodeId("a-2"), expected=None, label="x")

        assert await stores.sessions.node(session_key(), "x") is None


async def test_labels_of_two_sessions_do_not_meet(opened: Open) -> None:
    other = session_key("other")
    async with opened() as stores:
        await exchange(stores, "a")
        await exchange(stores, "x", key=other)
        move = stores.sessions.move_head
        await move(session_key(), NodeId("a-2"), expected=NodeId("a-2"), label="same")
        await move(other, NodeId("x-2"), expected=NodeId("x-2"), label="same")

        here = await stores.sessions.node(session_key(), "same")
        there = await stores.sessions.node(other, "same")

    assert here is not None
    assert there is not None
    assert (here.id, there.id) == ("a-2", "x-2")


# --- sessions ----------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Index-01")
async def test_pages_lose_nobody_even_if_all_were_touched_at_once(opened: Open) -> None:
    async with opened() as stores:
        for number in range(7):
            await stores.inbox.accept(an_entry(f"s{number}", session_key(f"p{number}")), begin=True)
        seen: list[str] = []
        query = SessionQuery(limit=3)
        while True:
            page = await stores.sessions.list_sessions(query)
            seen += [record.key.peer for record in page.sessions]
            if not page.more:
                break
            query = replace(query, before=page.sessions[-1].updated_at)

    assert seen == [f"p{number}" for number in reversed(range(7))]


async def test_the_session_spoken_in_last_comes_first(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a", session_key("a")), begin=True)
        await stores.inbox.accept(an_entry("b", session_key("b")), begin=True)
        await stores.inbox.finish(an_ending("a", session_key("a"), after_s=60))

        page = await stores.sessions.list_sessions(SessionQuery())

    assert [record.key.peer for record in page.sessions] == ["a", "b"]
    assert not page.more


async def test_a_filter_has_to_match_in_every_field(opened: Open) -> None:
    keys = [
        session_key("one"),
        session_key("two", agent="other"),
        session_key("three", account="bob"),
        session_key("100%"),
    ]
    async with opened() as stores:
        for number, key in enumerate(keys):
            await stores.inbox.accept(an_entry(f"s{number}", key), begin=False)

        async def peers(query: SessionQuery) -> set[str]:
            return {
                record.key.peer for record in (await stores.sessions.list_sessions(query)).sessions
            }

        assert await peers(SessionQuery(agents=("other",))) == {"two"}
        assert await peers(SessionQuery(account="bob")) == {"three"}
        assert await peers(SessionQuery(peer="100%")) == {"100%"}
        assert await peers(SessionQuery(peer="o")) == set()
        assert await peers(SessionQuery(channels=("websocket",), account="local", text="o")) == {
            "one",
            "two",
            "100%",
        }
        assert await peers(SessionQuery(text="%25")) == {"100%"}
        assert await peers(SessionQuery(text="_")) == set()
        assert await peers(SessionQuery(channels=("api",))) == set()
        assert await peers(SessionQuery(agents=())) == set()
        assert await peers(SessionQuery(limit=0)) == set()


# --- runs and journal --------------------------------------------------------------------------


async def test_a_run_is_found_while_it_runs_and_an_unknown_one_never(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)

        record = await stores.inbox.find_run(RunId("run-a"))

        assert record is not None
        assert (record.entry.state, record.outcome, record.log, record.finished_at) == (
            "running",
            None,
            b"",
            None,
        )
        assert await stores.inbox.find_run(RunId("run-z")) is None


async def test_a_journal_gives_its_parts_once_in_order(opened: Open) -> None:
    run, parts = RunId("run-a"), [b"", b"\0\xff and more", b"two", b"ten"]
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        for number, part in [(10, b"ten"), (1, b"\0\xff"), *enumerate(parts[:3])]:
            await stores.journal.append(run, number, partial(bytes, part))
        await stores.journal.append(RunId("run-b"), 0, lambda: b"of another")

        assert list(await stores.journal.read(run)) == parts
        assert list(await stores.journal.read(RunId("run-z"))) == []


async def test_the_story_of_a_run_is_its_record_its_journal_and_its_answer(opened: Open) -> None:
    name = an_entry("a").message_id
    async with opened() as stores:
        await deliver(stores, "a", "p", delivery(f"d_{name}"))
        await deliver(stores, "b", "q")
        history = await stores.inbox.run_history(RunId("run-a"))
        other = await stores.inbox.run_history(RunId("run-b"))

        assert history.record == await stores.inbox.find_run(RunId("run-a"))
        assert list(history.parts) == list(await stores.journal.read(RunId("run-a")))
        assert history.delivery is not None
        assert (history.delivery.new.id, other.delivery) == (f"d_{name}", None)
        with pytest.raises(NotFound):
            await stores.inbox.run_history(RunId("run-z"))


async def test_the_chunks_of_a_run_stand_in_its_journal(opened: Open) -> None:
    first = pack_text([b'["attempt",1,["run-a"]]', b'{"seq":1}', b'["stop","cancelled",true]'])
    last = pack_text([b'{"seq":2,"content":"\xc3\xa9"}', b'["over"]', b'{"seq":3,"type":"done"}'])
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        await stores.journal.append(RunId("run-a"), 0, lambda: first)
        await stores.inbox.finish(replace(an_ending("a"), journal=lambda: last, part=1))

        record = await stores.inbox.find_run(RunId("run-a"))

        assert record is not None
        chunks = b'{"seq":1}', b'{"seq":2,"content":"\xc3\xa9"}', b'{"seq":3,"type":"done"}'
        assert record.log.split(b"\n") == [*chunks]
        assert list(await stores.journal.read(RunId("run-a"))) == [first, last]


# --- outbox ------------------------------------------------------------------------------------


def delivery(name: str, text: str = "answer") -> NewDelivery:
    return NewDelivery(name, "telegram", "bot", "peer", None, text)


async def deliver(stores: Stores, name: str, peer: str, *deliveries: NewDelivery) -> None:
    key = session_key(peer)
    await stores.inbox.accept(an_entry(name, key), begin=True)
    await stores.inbox.finish(an_ending(name, key, nodes=(), deliveries=deliveries))


LATER = NOON + timedelta(hours=1)


async def due(stores: Stores, limit: int = 9) -> list[str]:
    return [one.new.id for one in await stores.outbox.due("telegram", now=LATER, limit=limit)]


async def test_an_answer_is_due_once_its_run_has_ended(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "main", delivery("d1", HOSTILE))

        early = await stores.outbox.due("telegram", now=NOON, limit=9)
        [one] = await stores.outbox.due("telegram", now=LATER, limit=9)

    assert list(early) == []
    assert one.new == delivery("d1", HOSTILE)
    assert (one.run_id, one.session_key, one.state, one.attempts) == (
        "run-a",
        session_key(),
        "pending",
        0,
    )
    assert one.due_at == NOON + timedelta(seconds=1)


async def test_one_delivery_a_session_is_due_and_the_oldest_goes_first(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"), delivery("d2"))
        await deliver(stores, "b", "two", delivery("d3"))

        assert await due(stores) == ["d1", "d3"]
        assert await due(stores, limit=1) == ["d1"]
        await stores.outbox.sending("d1", 0)
        assert await due(stores) == ["d3"]
        await stores.outbox.settle("d1", "sent", at=NOON, receipt="m1")
        assert await due(stores) == ["d2", "d3"]


async def test_a_delivery_that_waits_holds_back_those_behind_it(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"), delivery("d2"))
        await stores.outbox.sending("d1", 0)

        await stores.outbox.settle(
            "d1", "pending", at=NOON, why="429", due_at=LATER + timedelta(seconds=1)
        )

        assert await due(stores) == []
        [again] = await stores.outbox.due("telegram", now=LATER + timedelta(seconds=1), limit=9)
        assert (again.new.id, again.attempts, again.why) == ("d1", 1, "429")


@pytest.mark.parametrize("final", ["failed", "unknown"])
async def test_a_delivery_that_is_over_lets_the_next_go(opened: Open, final: str) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"), delivery("d2"))
        await stores.outbox.sending("d1", 0)

        await stores.outbox.settle("d1", final, at=NOON, why="gone")  # type: ignore[arg-type]  # parametrised

        assert await due(stores) == ["d2"]


async def test_only_a_pending_delivery_can_be_taken(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await stores.outbox.sending("d1", 0)

        with pytest.raises(Conflict, match="d1 is sending"):
            await stores.outbox.sending("d1", 0)
        with pytest.raises(NotFound):
            await stores.outbox.sending("d9", 0)
        with pytest.raises(NotFound):
            await stores.outbox.settle("d9", "sent", at=NOON)
        with pytest.raises(Conflict):
            await stores.outbox.settle("d1", "sending", at=NOON)


async def test_what_was_sent_stays_sent(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await stores.outbox.sending("d1", 0)
        await stores.outbox.settle("d1", "sent", at=NOON, receipt="m1")

        await stores.outbox.settle("d1", "pending", at=NOON)

        assert await due(stores) == []


async def test_what_was_being_sent_is_found_and_may_be_sent_again(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await deliver(stores, "b", "two", delivery("d2"))
        await stores.outbox.sending("d1", 0)

        [left] = await stores.outbox.interrupted()
        assert (left.new.id, left.state, left.attempts) == ("d1", "sending", 1)
        await stores.outbox.settle("d1", "pending", at=NOON)

        assert list(await stores.outbox.interrupted()) == []
        assert await due(stores) == ["d1", "d2"]


async def test_a_delivery_that_no_turn_made_waits_for_no_other(opened: Open) -> None:
    async with opened() as stores:
        heard = [ReceivedMessage("telegram", "bot", name, "told", NOON) for name in "ab"]

        for name, one in zip("ab", heard, strict=True):
            await stores.channels.record(one, [replace(delivery(f"d{name}"), whence="{}")])

        first, second = await stores.outbox.due("telegram", now=LATER, limit=9)
        assert (first.new.whence, first.run_id, first.session_key) == ("{}", None, None)
        assert first.place < second.place
        assert list(await stores.outbox.due("slack", now=LATER, limit=9)) == []


async def test_each_part_is_marked_with_what_has_arrived_and_counts_its_own_attempts(
    opened: Open,
) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await stores.outbox.sending("d1", 0)
        await stores.outbox.settle("d1", "pending", at=NOON, due_at=NOON)
        await stores.outbox.sending("d1", 0)

        [tried] = await stores.outbox.interrupted()
        await stores.outbox.sending("d1", 4)
        [second] = await stores.outbox.interrupted()

        assert (tried.attempts, tried.arrived, tried.settled_at) == (2, 0, NOON)
        assert (second.attempts, second.arrived) == (1, 4)
        with pytest.raises(Conflict):
            await stores.outbox.sending("d1", 4)


async def test_what_has_arrived_is_known_while_the_next_part_waits(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await stores.outbox.sending("d1", 0)

        await stores.outbox.arrived("d1", 4, receipt="m1")

        [waiting] = await stores.outbox.due("telegram", now=LATER, limit=9)
        assert (waiting.arrived, waiting.attempts, waiting.receipt) == (4, 0, "m1")
        assert list(await stores.outbox.interrupted()) == []
        with pytest.raises(Conflict):
            await stores.outbox.arrived("d1", 4, receipt="m1")


async def test_a_part_is_marked_with_how_it_goes_and_may_go_anew_once(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await stores.outbox.sending("d1", 0, is_safe=True, receipt="m7")
        [edited] = await stores.outbox.interrupted()

        await stores.outbox.sending("d1", 0)
        [anew] = await stores.outbox.interrupted()

        assert (edited.is_safe, edited.receipt) == (True, "m7")
        assert (anew.is_safe, anew.receipt, anew.attempts) == (False, None, 1)
        with pytest.raises(Conflict):
            await stores.outbox.sending("d1", 0, is_safe=True, receipt="m7")


@pytest.mark.parametrize(
    ("state", "why"), [("unknown", "it may have arrived"), ("failed", f"403; {TWICE}")]
)
async def test_what_goes_out_anew_although_it_may_have_arrived_is_told(
    opened: Open, state: DeliveryState, why: str
) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await stores.outbox.sending("d1", 0)
        await stores.outbox.settle("d1", state, at=NOON, why=why)

        await stores.outbox.resubmit("d1", now=NOON)

        [again] = await stores.outbox.due("telegram", now=LATER, limit=9)
        assert again.why == TWICE


async def test_dead_letters_are_listed_newest_first_and_by_channel(opened: Open) -> None:
    async with opened() as stores:
        slack = replace(delivery("d4"), channel="slack")
        await deliver(stores, "a", "one", *map(delivery, ("d1", "d2", "d3")), slack)
        for name, state in {"d1": "failed", "d2": "unknown", "d3": "sent", "d4": "failed"}.items():
            await stores.outbox.settle(name, state, at=LATER, why="no")  # type: ignore[arg-type]  # a table

        every = await stores.outbox.dead_letters(None, before=None, limit=9)
        page = await stores.outbox.dead_letters("telegram", before=every[1].place, limit=9)

        assert [one.new.id for one in every] == ["d4", "d2", "d1"]
        assert [one.new.id for one in page] == ["d1"]
        assert (every[0].why, every[0].settled_at) == ("no", LATER)
        assert dict(await stores.outbox.tally()) == {
            ("telegram", "failed"): 1,
            ("telegram", "unknown"): 1,
            ("slack", "failed"): 1,
        }


async def test_a_dead_letter_goes_out_anew_from_the_part_that_has_not_arrived(
    opened: Open,
) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"), delivery("d2"))
        await stores.outbox.sending("d1", 3)
        await stores.outbox.settle("d1", "failed", at=NOON, why="403")

        await stores.outbox.resubmit("d1", now=NOON)

        [again] = await stores.outbox.due("telegram", now=LATER, limit=9)
        assert (again.new.id, again.arrived, again.attempts, again.why) == ("d1", 3, 0, None)
        assert again.settled_at is None
        with pytest.raises(NotFound):
            await stores.outbox.resubmit("d1", now=NOON)


async def test_a_dead_letter_that_is_dropped_is_gone_and_no_other_delivery_can_be(
    opened: Open,
) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"), delivery("d2"))
        await stores.outbox.settle("d1", "failed", at=NOON)

        await stores.outbox.drop("d1")

        assert list(await stores.outbox.dead_letters(None, before=None, limit=9)) == []
        for name in ("d1", "d2"):
            with pytest.raises(NotFound):
                await stores.outbox.drop(name)


async def test_what_is_erased_while_it_is_being_sent_is_not_sent_again(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await stores.outbox.sending("d1", 0)
        await stores.sessions.erase(session_key("one"), by="ann", dry_run=False, now=NOON)

        await stores.outbox.settle("d1", "pending", at=NOON, why="429", due_at=NOON)

        [left] = await stores.outbox.dead_letters(None, before=None, limit=9)
        assert (left.state, left.why, left.new.text, left.new.whence) == (
            "failed",
            "erased",
            "",
            None,
        )
        with pytest.raises(Conflict, match="erased"):
            await stores.outbox.resubmit("d1", now=NOON)


async def test_what_waits_for_a_channel_that_is_gone_fails(opened: Open) -> None:
    async with opened() as stores:
        await deliver(stores, "a", "one", delivery("d1"))
        await deliver(stores, "b", "two", replace(delivery("d2"), channel="slack", account="a"))
        await deliver(stores, "c", "three", replace(delivery("d3"), channel="slack", account="b"))

        assert await stores.outbox.strand([("slack", "a")], at=NOON) == 2

        left = await stores.outbox.dead_letters(None, before=None, limit=9)
        assert [(one.new.id, one.state) for one in left] == [("d3", "failed"), ("d1", "failed")]
        assert len(await stores.outbox.due("slack", now=LATER, limit=9)) == 1


# --- care --------------------------------------------------------------------------------------


async def test_a_sweep_forgets_journals_and_logs_and_keeps_the_rest(opened: Open) -> None:
    async with opened() as stores:
        parent = None
        for number, name in enumerate("abc"):
            await stores.inbox.accept(an_entry(name), begin=True)
            await stores.journal.append(RunId(f"run-{name}"), 0, f"of {name}".encode)
            ending = an_ending(name, grown_from=parent, after_s=number)
            await stores.inbox.finish(replace(ending, part=1))
            parent = f"{name}-2"
        await stores.inbox.accept(an_entry("open"), begin=True)
        await stores.journal.append(RunId("run-open"), 0, lambda: b"of open")
        before = NOON + timedelta(seconds=2)

        swept = [await stores.care.sweep(before=before, limit=1) for _ in range(3)]

        assert swept == [1, 1, 0]
        for name, parts in {"a": 0, "b": 0, "c": 2, "open": 1}.items():
            assert len(await stores.journal.read(RunId(f"run-{name}"))) == parts
        record = await stores.inbox.find_run(RunId("run-a"))
        assert record is not None
        assert (record.log, record.outcome, record.summary) == (b"", "answered", '{"turn":1}')
        assert len((await ids(stores, limit=9))[0]) == 6


async def test_a_closed_store_refuses_and_closes_twice(opened: Open) -> None:
    async with opened() as stores:
        await stores.care.probe()
        await stores.care.close()
        await stores.care.close()

        for refused in (
            lambda: stores.inbox.accept(an_entry("a"), begin=True),
            stores.care.probe,
            stores.sessions.count_sessions,
        ):
            with pytest.raises(StoreUnavailable, match="closed"):
                await refused()


async def test_a_write_is_carried_out_though_nobody_waits_for_it_any_more(opened: Open) -> None:
    async with opened() as stores:
        for user in range(4):
            await stores.sessions.write_settings(f"u{user}", "{}", expected=None)

    async with opened() as stores:
        for user in range(4):
            change = partial(stores.sessions.write_settings, f"u{user}", "[]", expected="{}")
            await cut_off(change, after=user + 1)
        await stores.sessions.write_settings("last", "{}", expected=None)
        kept = [await stores.sessions.read_settings(f"u{user}") for user in range(4)]

    assert kept == ["[]"] * 4


async def cut_off(change: Callable[[], Coroutine[Any, Any, object]], *, after: int) -> None:
    """Begins it, and cancels it so many turns of the loop later."""
    async with anyio.create_task_group() as group:
        group.start_soon(change)
        for _ in range(after):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
