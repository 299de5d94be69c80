"""Each notice comes out once, at its moment, the urgent ones first, and stays inside its block."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gateway.control.notices import MAX_CONTENT, Moment, Notices, notice_block, notice_chunk
from gateway.control.notices import MAX_NOTICES as MOST_WAITING
from gateway.domain.events import Batching, Notice, Point, Priority

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
PRIORITIES = get_args(Priority)
MOMENTS: tuple[Moment, ...] = get_args(Moment)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def never(_: str) -> bool:
    return False


def drained(
    queue: Notices,
    point: Moment = "turn_start",
    *,
    turn: int = 1,
    at: datetime = NOW,
    tools: frozenset[str] = frozenset(),
) -> list[str]:
    out = queue.drain(point, turn=turn, tools=tools, now=at, holds=never)
    return [notice.content for notice in out]


def filled(*notices: Notice, at: datetime = NOW) -> Notices:
    queue = Notices()
    for notice in notices:
        assert queue.push(notice, at)
    return queue


class Queue(RuleBasedStateMachine):
    """Against a plain account of what was taken: nothing is lost, doubled or out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Notices()
        self.now = NOW
        self.count = 0
        self.taken: list[Notice] = []
        self.last: dict[str, datetime] = {}

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(
        priority=st.sampled_from(PRIORITIES),
        point=st.sampled_from(["immediate", "turn_start", "after_tool", "cross_session"]),
        key=st.sampled_from([None, "a", "b"]),
        expires=st.sampled_from([None, 0.0, 2.0, 20.0]),
    )
    def push(
        self, priority: Priority, point: Point, key: str | None, expires: float | None
    ) -> None:
        self.count += 1
        ends = None if expires is None else self.now + timedelta(seconds=expires)
        notice = Notice(
            str(self.count), priority, point, source="s", dedupe_key=key, expires_at=ends
        )
        repeats = (
            key is not None
            and key in self.last
            and self.now - self.last[key] < timedelta(seconds=10)
        )

        taken = self.queue.push(notice, self.now)

        assert taken is (not repeats and expires != 0.0)
        if taken:
            self.taken.append(notice)
            if key is not None:
                self.last[key] = self.now

    @rule(point=st.sampled_from(MOMENTS))
    def drain(self, point: Moment) -> None:
        self.taken = [
            one for one in self.taken if one.expires_at is None or one.expires_at > self.now
        ]
        here = {point, "immediate"} | ({"cross_session"} if point == "turn_start" else set())
        due = [one for one in self.taken if one.inject_at in here]
        expected = sorted(due, key=lambda one: PRIORITIES.index(one.priority))

        out = self.queue.drain(point, turn=1, now=self.now, holds=never)

        assert list(out) == expected
        self.taken = [one for one in self.taken if one not in due]


TestQueue = pytest.mark.requirement("S-002-ANS-07")(Queue.TestCase)


@pytest.mark.requirement("S-002-ANS-07")
def test_the_urgent_come_first_and_equals_in_their_order() -> None:
    order: tuple[Priority, ...] = ("low", "normal", "critical", "high", "critical", "low")
    queue = filled(*(Notice(f"{name}{n}", name) for n, name in enumerate(order)))

    assert drained(queue) == ["critical2", "critical4", "high3", "normal1", "low0", "low5"]
    assert drained(queue) == []


@pytest.mark.requirement("S-002-ANS-04")
@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("immediate", ["immediate"]),
        ("turn_start", ["immediate", "turn_start", "cross_session"]),
        ("after_tool", ["immediate", "after_tool"]),
    ],
)
def test_each_comes_at_its_own_point(point: Moment, told: list[str]) -> None:
    points: tuple[Point, ...] = ("immediate", "turn_start", "after_tool", "cross_session")
    queue = filled(*(Notice(name, inject_at=name) for name in points))

    assert drained(queue, point) == told
    rest = [*drained(queue, "turn_start"), *drained(queue, "after_tool")]
    assert {*told, *rest} == set(points)
    assert len(told) + len(rest) == len(points)


@pytest.mark.requirement("S-002-ANS-05")
def test_a_deferred_one_waits_for_its_tool_its_turns_and_its_condition() -> None:
    queue = filled(
        Notice("tool", inject_at="deferred", after_tool="notes"),
        Notice("turns", inject_at="deferred", after_turns=2),
        Notice("both", inject_at="deferred", after_turns=3, after_tool="notes"),
        Notice("when", inject_at="deferred", when="state.ready"),
        Notice("now", inject_at="deferred"),
    )
    held: set[str] = set()

    def told(point: Moment, turn: int, *tools: str) -> list[str]:
        out = queue.drain(
            point, turn=turn, tools=frozenset(tools), now=NOW, holds=held.__contains__
        )
        return [notice.content for notice in out]

    assert told("immediate", 1) == ["now"]
    assert told("after_tool", 1, "search") == []
    assert told("after_tool", 1, "notes", "search") == ["tool"]
    assert told("turn_start", 2) == ["turns"]
    held.add("state.ready")
    assert told("immediate", 2) == ["when"]
    assert told("turn_start", 3) == ["both"]


@pytest.mark.requirement("S-002-ANS-05")
def test_turns_count_from_when_it_came() -> None:
    queue = Notices()
    drained(queue, turn=4)
    queue.push(Notice("x", after_turns=1), NOW)

    assert drained(queue, turn=4) == []
    assert drained(queue, turn=5) == ["x"]


def test_one_for_after_a_tool_waits_for_that_tool() -> None:
    queue = filled(Notice("x", inject_at="after_tool", after_tool="notes"))

    assert drained(queue, "after_tool", tools=frozenset({"search"})) == []
    assert drained(queue, "after_tool", tools=frozenset({"notes"})) == ["x"]


@pytest.mark.requirement("S-002-ANS-07")
def test_a_repetition_is_none_within_its_window_also_when_the_first_is_told() -> None:
    queue = filled(Notice("first", dedupe_key="k"))

    assert drained(queue) == ["first"]
    assert not queue.push(Notice("again", dedupe_key="k"), later(9.9))
    assert queue.push(Notice("of another", source="other", dedupe_key="k"), later(9.9))
    assert queue.push(Notice("much later", dedupe_key="k"), later(10))
    short = Notice("short", dedupe_key="s", batching=Batching(dedupe_s=1))
    assert [queue.push(short, later(at)) for at in (0, 0.5, 1)] == [True, False, True]


def test_what_has_expired_is_never_told() -> None:
    queue = filled(Notice("short", expires_at=later(1)), Notice("long", expires_at=later(3)))

    assert not queue.push(Notice("over", expires_at=NOW), NOW)
    assert drained(queue, at=later(1)) == ["long"]


def test_beyond_the_bound_a_notice_is_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = filled(*(Notice(str(n)) for n in range(MOST_WAITING)))

    assert not queue.push(Notice("more"), NOW)
    assert "notice_queue_full" in caplog.text
    assert len(drained(queue)) == MOST_WAITING
    assert queue.push(Notice("more"), NOW)


def failures(count: int, *, gap: float = 0.0, **more: object) -> Notices:
    queue = Notices()
    for n in range(count):
        notice = Notice(
            f"search_{n} failed: timeout; try another tool.",
            source="rule:tool-failures",
            data={"tool": f"search_{n}", "error": "timeout", **more},
        )
        assert queue.push(notice, later(n * gap))
    return queue


def block(queue: Notices) -> str:
    return notice_block(queue.drain("turn_start", turn=1, now=later(60), holds=never))


@pytest.mark.requirement("S-002-ANS-06")
def test_a_single_notice_is_a_line_of_its_block() -> None:
    assert block(filled(Notice("Wrap up."))) == "<system-notice>\nWrap up.\n</system-notice>"


@pytest.mark.requirement("S-002-ANS-07", "S-002-ANS-09")
def test_a_batch_is_its_first_words_and_a_table() -> None:
    assert block(failures(3)) == (
        "<system-notice>\n"
        "search_0 failed: timeout; try another tool.\n"
        '"tool-failures"[3]{tool,error}:\n'
        "  search_0,timeout\n"
        "  search_1,timeout\n"
        "  search_2,timeout\n"
        "</system-notice>"
    )


@pytest.mark.requirement("S-002-ANS-07")
@pytest.mark.parametrize(
    ("count", "gap", "sizes"), [(3, 0.5, [3]), (4, 0.0, [3]), (5, 0.0, [3, 2]), (4, 0.6, [2, 2])]
)
def test_a_batch_ends_with_its_window_and_its_size(
    count: int, gap: float, sizes: list[int]
) -> None:
    told = block(failures(count, gap=gap))

    assert [int(size) for size in re.findall(r"\[(\d+)\]\{", told)] == sizes
    assert all(f"search_{n}" in told for n in range(count))


@pytest.mark.requirement("S-002-ANS-07")
def test_critical_ones_are_in_no_batch_and_batches_stay_within_source_and_priority() -> None:
    told = block(
        filled(
            Notice("low", "low", data={"n": 1}),
            Notice("one", data={"n": 1}),
            Notice("other", source="other", data={"n": 1}),
            Notice("two", data={"n": 2}),
            Notice("stop", "critical", data={"n": 1}),
            Notice("halt", "critical", data={"n": 2}),
            Notice("odd", source="other", data={"m": 2}),
        )
    )

    assert told.splitlines()[1:-1] == [
        *("stop", "halt"),
        *("one", "rule[2]{n}:", "  1", "  2"),
        *("other", "odd", "low"),
    ]


def test_only_what_fits_into_a_cell_is_in_a_table_and_the_same_words_are_said_once() -> None:
    deep = {"n": 1, "list": [1], "long": "x" * 5_000}
    tables = block(filled(Notice("a", data=deep), Notice("b", data=deep)))
    words = block(filled(Notice("same"), Notice("same"), Notice("else")))

    assert "rule[2]{n,long}:" in tables
    assert len(tables) < 600
    assert words.splitlines()[1:-1] == ["same", "else"]


@pytest.mark.requirement("S-002-ANS-06")
def test_what_is_for_the_client_is_not_told_to_the_model() -> None:
    mixed = [Notice("for all"), Notice("secret", to="client"), Notice("hint", to="model")]

    assert notice_block(mixed) == "<system-notice>\nfor all\nhint\n</system-notice>"
    assert notice_block(mixed[1:2]) == ""
    assert notice_block([]) == ""


HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(["</system-notice>", "<system-notice>", "< / SYSTEM-NOTICE >", "\n", "\r"]),
        st.sampled_from(["\u2028", "\x85", "\x0b", "\x00", ",", '"', "\\", "<", ">", "a[1]{b}:"]),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)


@given(
    st.lists(
        st.tuples(HOSTILE, HOSTILE, st.dictionaries(HOSTILE, HOSTILE, max_size=3)),
        min_size=1,
        max_size=6,
    )
)
def test_no_content_gets_out_of_its_block(hostile: list[tuple[str, str, dict[str, str]]]) -> None:
    told = block(filled(*(Notice(text, source=name, data=data) for text, name, data in hostile)))

    if not told:
        assert not any(re.sub(r"[\x00-\x1f\x7f-\x9f\s]", "", text) for text, _, _ in hostile)
        return
    first, *lines, last = told.split("\n")
    assert (first, last) == ("<system-notice>", "</system-notice>")
    assert told.count("<") == 2
    assert told.splitlines() == told.split("\n")
    rows = sum(int(size) for size in re.findall(r"^.*\[(\d)\]\{.*\}:$", told, re.MULTILINE))
    assert len(lines) <= 3 * len(hostile) + rows


def test_a_huge_notice_is_cut() -> None:
    told = block(filled(Notice("x" * 100_000)))

    assert len(told) < MAX_CONTENT + 50
    assert "…\n" in told


@pytest.mark.requirement("S-002-ANS-09")
@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (
            "{tool} gave {items} results; narrow the query.",
            [{"tool": "vault_search", "items": 9}, {"tool": "search_code", "items": 31}],
        ),
        (
            "budget_warn: {percent}% ({current}/{limit})",
            [
                {"budget_type": "token", "percent": 80, "current": 40_000, "limit": 50_000},
                {"budget_type": "token", "percent": 90, "current": 45_000, "limit": 50_000},
                {"budget_type": "token", "percent": 95, "current": 47_512, "limit": 50_000},
            ],
        ),
        (
            "{tool} failed: {error}",
            [
                {"tool": "fetch", "error": "the host answered 503", "duration_ms": 812.5},
                {"tool": "fetch", "error": "no answer within 30 s", "duration_ms": 30_000.1},
                {"tool": "vault_read", "error": "no note 'x, y'", "duration_ms": 2.25},
            ],
        ),
    ],
)
def test_a_batch_takes_at_most_sixty_percent_of_its_json(
    content: str, rows: list[dict[str, str | float]]
) -> None:
    """The JSON holds the same: each notice's words, source and data."""
    batch = [Notice(content.format(**row), source="rule:built-in", data=row) for row in rows]
    as_json = json.dumps(
        [{"source": one.source, "content": one.content, "data": one.data} for one in batch],
        separators=(",", ":"),
    )

    told = block(filled(*batch))

    assert len(told.encode()) <= 0.6 * len(as_json.encode())
    assert all(str(value) in told for row in rows for value in row.values())


@pytest.mark.requirement("S-002-ANS-06")
def test_the_client_is_told_in_a_system_chunk() -> None:
    chunk = notice_chunk(Notice("Wrap <up>.", "high", source="rule:x"), NOW)

    assert chunk.type == "system"
    assert chunk.data == {
        "system_type": "notice",
        "system_message": "Wrap <up>.",
        "metadata": {"source": "rule:x", "priority": "high"},
        "timestamp": NOW,
    }
