"""What a run was granted is granted to its next attempt exactly as it was, in its own part alone."""

import anyio
import pytest

from gateway.agent.driver import EventQueue, RunJournal, part_of
from gateway.agent.effects import Steered, TimePassed
from gateway.domain.ids import RunId
from gateway.domain.journal import JournalEntry
from gateway.domain.messages import Excerpt, Extras, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import BudgetWarning, ModelReply
from tests.fakes.clock import FakeClock
from tests.fakes.journal import KeptJournal

REPLY = ModelReply(
    "p",
    "m",
    "text",
    "thought",
    (ToolCall("1", "echo", '{"a":1}'), ToolCall("2", "echo")),
    Usage(1, 2, 3, 4, 0.5, estimated=True),
    "tool_calls",
    Extras("p", "[1]"),
    (BudgetWarning("daily", "tokens", 900, 1000),),
)

SPENT = (Spent(Usage(10, 5, cost_usd=0.25), "p", "small"), Spent(Usage(1, 1), "q", "other"))
CALL = ToolCall("1", "pay", '{"n":1}')
PART = part_of("", CALL, 2)
SAID = Steered(RunId("r_2"), "faster")


def journal(earlier: tuple[JournalEntry, ...] = ()) -> KeptJournal:
    return KeptJournal(FakeClock(), earlier)


def again(kept: KeptJournal) -> KeptJournal:
    return journal(tuple(kept.kept))


@pytest.mark.parametrize("part", ["", PART, part_of(PART, CALL, 0)])
async def test_all_that_was_granted_comes_back_as_it_was(part: str) -> None:
    root = journal()
    first = root.inner(part) if part else root
    result = ToolResult("1", "echo", "done", True, 1.5, SPENT, "b", Excerpt(1, 2, 9, "ref"))
    await first.keep_reply(0, REPLY)
    await first.keep_result(0, REPLY.tool_calls[0], result)
    await first.grant("begun:2", "begun", 0, "2")
    await first.keep_taken(1, SAID)

    then = again(root).inner(part) if part else again(root)

    assert then.replies == {0: REPLY}
    assert then.result(0, REPLY.tool_calls[0]) == result
    assert then.results[0, "1"].boundary == "b"
    assert then.result(0, REPLY.tool_calls[1]) is None
    assert then.result(1, REPLY.tool_calls[0]) is None
    assert then.begun == {(0, "2")}
    assert list(then.taken.values()) == [(1, SAID)]
    assert root.written == [
        f"{part}{what}" for what in ("reply:0", "result:1", "begun:2", "taken:r_2")
    ]


async def test_what_is_granted_is_known_in_its_own_part_alone() -> None:
    root = journal()
    await root.inner(PART).grant("begun:1", "begun", 2, "1")
    await root.keep_reply(1, REPLY)

    then = again(root)
    inside, deeper = then.inner(PART), then.inner(PART + PART)

    assert (inside.begun, inside.replies) == ({(2, "1")}, {})
    assert (then.begun, then.replies) == (set(), {1: REPLY})
    assert (deeper.begun, deeper.replies) == (set(), {})
    assert inside.result(2, CALL) is None


async def test_a_part_within_a_part_is_the_runs_own() -> None:
    root, deep = journal(), part_of(PART, CALL, 3)

    await root.inner(PART).inner(deep).grant("begun:1", "begun", 0, "1")

    assert root.kept == [JournalEntry("sub", (deep, "begun", [0, "1"]))]
    assert again(root).inner(deep).begun == {(0, "1")}


async def test_it_is_granted_at_once_and_taken_once() -> None:
    root = journal()

    await root.keep_taken(0, SAID)
    await root.keep_taken(3, SAID)
    await root.keep_result(0, CALL, ToolResult("1", "pay", "PAID"))

    assert list(root.taken.values()) == [(0, SAID)]
    assert root.result(0, CALL) == ToolResult("1", "pay", "PAID")
    assert [one.kind for one in root.kept] == ["taken", "result"]


def test_two_calls_have_two_parts_however_a_model_names_them() -> None:
    calls = [ToolCall(name, "echo") for name in ("1", "1@2:", "\ud800", "")]

    parts = [
        part_of(within, call, step) for within in ("", PART) for call in calls for step in (0, 1)
    ]

    assert len(set(parts)) == len(parts)
    assert all(part.startswith("@") for part in parts)


def test_what_is_no_grant_is_passed_over() -> None:
    entries = [
        JournalEntry("attempt", (1, ["r"])),
        JournalEntry("reply", (0, None)),
        JournalEntry("cut"),
    ]

    granted = RunJournal(FakeClock(), entries)

    assert (granted.replies, granted.results, granted.begun, granted.taken) == ({}, {}, set(), {})


async def test_a_run_that_nobody_records_keeps_nothing_and_knows_its_own() -> None:
    alone = RunJournal(FakeClock())

    await alone.keep_reply(0, REPLY)
    await alone.grant("begun:1", "begun", 0, "1")
    await alone.keep_result(0, CALL, ToolResult("1", "pay", "PAID"))

    assert not alone.is_recorded
    assert alone.replies == {0: REPLY}
    assert alone.result(0, CALL) == ToolResult("1", "pay", "PAID")


async def test_it_waits_for_an_event_and_says_whether_one_came() -> None:
    alone, queue = RunJournal(FakeClock()), EventQueue()

    with anyio.fail_after(60):
        came = [await alone.wait(queue, 0.0)]
        async with anyio.create_task_group() as group:
            group.start_soon(_put, queue)
            came.append(await alone.wait(queue, 60.0))
        came.append(await alone.wait(queue, 0.0))

    assert came == [False, True, True]


async def _put(queue: EventQueue) -> None:
    queue.put(TimePassed())


def test_a_moment_is_what_both_clocks_say() -> None:
    clock = FakeClock()
    alone = RunJournal(clock)
    clock.move(3.0)

    moment = alone.moment()

    assert (moment.wall, moment.at) == (clock.now(), 3.0)
