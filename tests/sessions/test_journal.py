"""What a run did can be read again in order, holds no secret, and is bounded."""

from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from gateway.agent.driver import RunControl, RunJournal
from gateway.agent.effects import Steered
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import RunId
from gateway.domain.journal import (
    MOST_BYTES,
    Attempt,
    JournalUnreadable,
    attempt_of,
    chunks_of,
    grants_of,
)
from gateway.domain.messages import ToolCall, ToolResult, Usage
from gateway.domain.model import ModelReply
from gateway.domain.ports import Journal
from gateway.sessions.journal import RecordedJournal, last_attempt
from tests.fakes.clock import FakeClock
from tests.fakes.journal import FakeJournal
from tests.fakes.ports import PartOfJournal

KEY = "sk-very-secret"
RUN = RunId("r")
CALL = ToolCall("1", "pay")
REPLY = ModelReply("p", "m", "look", tool_calls=(CALL,), usage=Usage(1, 2))
PAID = ToolResult("1", "pay", "PAID")


def journal(store: Journal | None = None, clock: FakeClock | None = None) -> RecordedJournal:
    one = RecordedJournal(RUN, clock or FakeClock(), store or FakeJournal())
    one("attempt", 1, ["q", RUN])
    one.moment()
    return one


def recorded(*pieces: bytes) -> RecordedJournal:
    one = journal()
    one("sent", 3)
    for piece in pieces:
        one("bytes", piece)
    one("stop", "cancelled", True)
    return one


async def last_of(one: RecordedJournal) -> bytes:
    _, pack = await one.last_part()
    return pack()


def read(*parts: bytes) -> Attempt:
    return attempt_of(parts, from_json)


def pieces_of(attempt: Attempt) -> list[str]:
    return [entry.values[0] for entry in attempt.entries if entry.kind == "bytes"]


@given(st.lists(st.binary(max_size=20)))
def test_every_byte_comes_back_in_its_piece(pieces: list[bytes]) -> None:
    attempt = read(anyio.run(last_of, recorded(*pieces)))

    assert [piece.encode("latin-1") for piece in pieces_of(attempt)] == pieces
    assert [entry.kind for entry in attempt.entries] == [
        *("at", "sent"),
        *(["bytes"] * len(pieces)),
        "stop",
    ]
    assert attempt.asked == ("q", "r")


@given(st.integers(1, len(KEY) - 1))
def test_a_secret_is_blotted_out_also_where_it_was_cut(place: int) -> None:
    one = recorded(f"a {KEY[:place]}".encode(), f"{KEY[place:]} b".encode())
    one.hide(KEY)

    pieces = pieces_of(read(anyio.run(last_of, one)))

    assert pieces == ["a " + "*" * place, "*" * (len(KEY) - place) + " b"]


async def test_a_secret_that_is_known_later_is_blotted_out_in_what_was_not_written_yet() -> None:
    store = FakeJournal()
    one = journal(store)
    one("bytes", KEY.encode())
    one.hide(KEY)
    await one.grant("reply:0", "reply")
    one("bytes", f"again {KEY}".encode())
    last = await last_of(one)

    assert pieces_of(read(*await store.read(RUN), last)) == ["*" * 14, "again " + "*" * 14]


@pytest.mark.parametrize("size", [0, 300_000])
async def test_what_was_granted_and_sent_is_read_again_over_its_parts(size: int) -> None:
    store = FakeJournal()
    one = journal(store)
    one("text", "x" * size)
    one.lines.append(b'{"seq":1}')
    one.replied(0, REPLY)
    await one.keep_reply(0, REPLY)
    await one.grant("begun:1", "begun", 0, "1")
    one.lines.append(b'{"seq":2}')
    await one.keep_result(0, CALL, PAID)
    await one.keep_taken(1, Steered(RunId("r_2"), "more"))
    one("over")
    one.lines.append(b'{"seq":3}')
    number, pack = await one.last_part()

    parts = [*await store.read(RUN), pack()]

    kept = [entry.values[0] for entry in read(*parts).entries if entry.kind == "kept"]
    assert (number, kept) == (4, ["reply:0", "begun:1", "result:1", "taken:r_2"])
    assert chunks_of(parts) == b'{"seq":1}\n{"seq":2}\n{"seq":3}'
    earlier = await store.read(RUN)
    granted = RunJournal(FakeClock(), grants_of(earlier, from_json))
    assert (granted.replies, granted.results) == ({0: REPLY}, {(0, "1"): PAID})
    assert (granted.begun, list(granted.taken)) == ({(0, "1")}, ["r_2"])
    assert len(earlier) == 4


async def test_the_next_attempt_writes_on_behind_what_the_one_before_left() -> None:
    store = FakeJournal()
    first = journal(store)
    first.lines.append(b'{"seq":1}')
    await first.keep_result(0, CALL, PAID)
    earlier = await store.read(RUN)
    granted = grants_of(earlier, from_json)
    second = RecordedJournal(RUN, FakeClock(), store, granted=granted, parts=len(earlier))
    second("attempt", 2, [RUN])
    second.lines.append(b'{"seq":9}')
    await second.keep_result(1, CALL, PAID)

    parts = await store.read(RUN)

    assert len(parts) == 2
    assert second.result(0, CALL) == PAID
    assert chunks_of(parts) == b'{"seq":9}'
    assert [entry.kind for entry in read(*parts).earlier] == ["attempt", "at", "result"]


async def test_what_others_did_while_it_runs_is_taken_down() -> None:
    one = journal()
    control = RunControl(record=one)

    control.steer(Steered(RunId("r_2"), "more"))
    control.withdraw(RunId("r_2"))
    control.stop("cancelled", at_once=True)

    entries = read(await last_of(one)).entries
    assert [(entry.kind, *entry.values) for entry in entries[1:]] == [
        ("said", "r_2", "more"),
        ("unsaid", "r_2"),
        ("stop", "cancelled", True),
    ]


async def test_a_run_that_is_told_too_much_keeps_what_it_was_granted_and_what_it_sent() -> None:
    store = FakeJournal()
    one = journal(store)
    one("bytes", b"small")
    await one.keep_result(0, CALL, PAID)
    for _ in range(9):
        one("bytes", b"x" * 1024 * 1024)
    one.lines.append(b'{"seq":1}')
    await one.grant("begun:1", "begun", 1, "1")
    one("text", "more")
    one.lines.append(b'{"seq":2}')
    first, *parts = [*await store.read(RUN), await last_of(one)]

    attempt = read(first, *parts)

    assert attempt.is_cut
    assert pieces_of(attempt) == ["small"]
    assert [entry.kind for entry in read(*parts).entries] == ["begun", "cut", "cut"]
    assert max(map(len, parts)) < 200
    assert chunks_of([first, *parts]) == b'{"seq":1}\n{"seq":2}'
    earlier = await store.read(RUN)
    granted = RunJournal(FakeClock(), grants_of(earlier, from_json))
    assert (granted.results, granted.begun) == ({(0, "1"): PAID}, {(1, "1")})


async def test_as_much_as_is_kept_of_a_run_can_be_read_again() -> None:
    one = recorded(*[b"\0\xff" * (MOST_BYTES // 16 - 100)] * 8)

    attempt = await last_attempt([await last_of(one)])

    assert not attempt.is_cut
    assert len("".join(pieces_of(attempt))) == MOST_BYTES - 1600


@pytest.mark.parametrize("size", [0, 300_000])
async def test_what_has_no_form_is_dropped_and_the_run_ends(size: int) -> None:
    one = recorded(b"x" * size)
    one("text", "half of a pair: \ud800")
    one.lines.append(b'{"seq":1}')
    one("over")

    part = await last_of(one)

    attempt = read(part)
    assert attempt.is_cut
    assert "text" not in {entry.kind for entry in attempt.entries}
    assert {"bytes", "over"} < {entry.kind for entry in attempt.entries}
    assert chunks_of([part]) == b'{"seq":1}'


@given(st.data())
def test_a_flipped_byte_never_breaks_anything(data: st.DataObject) -> None:
    whole = bytearray(anyio.run(last_of, recorded(b"some bytes")))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))

    with suppress(JournalUnreadable):
        attempt_of([bytes(whole)], from_json)
    chunks_of([bytes(whole)])


class Away(FakeJournal, PartOfJournal):
    """A store that cannot write for a time."""

    is_away = True

    async def append(self, run_id: RunId, part: int, pack: object) -> None:
        if self.is_away:
            raise StoreUnavailable("no room")
        assert callable(pack)
        await super().append(run_id, part, pack)


async def test_it_waits_for_the_store_before_anything_takes_effect() -> None:
    store, clock = Away(), FakeClock()
    one, took = journal(store, clock), list[str]()

    async def keep() -> None:
        await one.grant("begun:1", "begun", 0, "1")
        took.append("effect")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(keep)
            await clock.until_someone_sleeps()
            before, store.is_away = list(took), False
            clock.move(1.0)

    assert (before, took) == ([], ["effect"])
    assert len(await store.read(RUN)) == 1


async def test_a_stop_while_the_store_is_away_loses_nothing_that_was_sent() -> None:
    store, clock = Away(), FakeClock()
    one = journal(store, clock)
    one.lines.append(b'{"seq":1}')
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(one.grant, "begun:1", "begun", 0, "1")
            await clock.until_someone_sleeps()
            group.cancel_scope.cancel()
    store.is_away = False
    one.lines.append(b'{"seq":2}')
    number, pack = await one.last_part()
    await store.append(RUN, number, pack)

    assert chunks_of(await store.read(RUN)) == b'{"seq":1}\n{"seq":2}'


async def test_a_part_that_was_never_written_is_in_the_way_of_no_later_one() -> None:
    store, clock = Away(), FakeClock()
    one = journal(store, clock)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(one.grant, "begun:1", "begun", 0, "1")
            await clock.until_someone_sleeps()
            group.cancel_scope.cancel()
    store.is_away = False
    await one.keep_result(1, CALL, PAID)
    earlier = await store.read(RUN)
    granted = grants_of(earlier, from_json)
    second = RecordedJournal(RUN, clock, store, granted=granted, parts=len(earlier))
    second("attempt", 2, [RUN])
    second.lines.append(b'{"seq":9}')
    await second.keep_result(2, CALL, PAID)

    assert chunks_of(await store.read(RUN)) == b'{"seq":9}'
