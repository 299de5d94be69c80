"""Senders never wait, and lagging readers are closed."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from gateway.web.settings import WebSettings
from gateway.web.wire.connections import Backlog
from gateway.web.wire.frames import MOST_GATHERED, FrameWriter


class Pipe(asyncio.Transport):
    """A transport that takes what it is given until it says that it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.on_write: Callable[[], None] = lambda: None
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        self.on_write()

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent


def outgoing(
    lagging: Callable[[], None],
    room_changed: Callable[[], None] = lambda: None,
    backlog: Backlog | None = None,
    **limits: Any,
) -> tuple[FrameWriter, Pipe]:
    pipe = Pipe()
    settings = WebSettings(**limits)
    return FrameWriter(pipe, settings, backlog or Backlog(), lagging, room_changed), pipe


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
async def test_a_frame_says_its_length(size: int) -> None:
    out, pipe = outgoing(lambda: None)
    out.send(b"x" * size)
    out.end(b"")
    (frame,) = pipe.written
    head = {True: 2, False: 4}[size < 126] if size < 65_536 else 10

    assert len(frame) == head + size
    assert frame[0] == 0x81
    assert frame[1] < 0x80


async def test_what_is_sent_in_one_round_of_the_loop_is_written_at_once_and_in_order() -> None:
    out, pipe = outgoing(lambda: None)
    for frame in (b"1", b"2", b"3"):
        out.send(frame, is_frame=True)
    before = list(pipe.written)
    await anyio.lowlevel.checkpoint()
    out.send(b"4", is_frame=True)
    out.end(b"5")
    await anyio.lowlevel.checkpoint()

    assert before == []
    assert pipe.written == [b"123", b"4", b"5"]


async def test_a_flood_in_one_round_is_not_gathered_without_a_bound() -> None:
    out, pipe = outgoing(lambda: None)
    for _ in range(100):
        out.send(b"x" * 1024, is_frame=True)

    assert len(b"".join(pipe.written)) >= MOST_GATHERED
    out.end(b"")


async def test_what_waits_goes_out_in_order_and_just_as_much_as_is_taken() -> None:
    out, pipe = outgoing(lambda: None)
    out.send(b"1", is_frame=True)
    out.pause()
    for frame in (b"2", b"3", b"4"):
        out.send(frame, is_frame=True)
    await anyio.lowlevel.checkpoint()
    assert pipe.written == [b"1"]

    pipe.on_write = lambda: out.pause() if pipe.written[-1] == b"3" else None
    out.resume()
    assert pipe.written == [b"1", b"2", b"3"]
    out.resume()
    assert pipe.written == [b"1", b"2", b"3", b"4"]
    out.end(b"")


@pytest.mark.parametrize(
    "limits",
    [{"push_queue_bytes": 100}, {"push_queues_bytes": 100, "send_queue_bytes": 50}],
    ids=["its own", "of all"],
)
async def test_too_much_that_cannot_be_had_later_is_reported_once_and_never_from_inside_a_push(
    limits: dict[str, Any],
) -> None:
    reported = anyio.Event()
    reports: list[int] = []

    def lagging() -> None:
        reports.append(1)
        reported.set()

    out, pipe = outgoing(lagging, **limits)
    out.pause()

    for _ in range(50):
        out.push(b"x" * 10)
    assert not reports
    with anyio.fail_after(60):
        await reported.wait()

    assert reports == [1]
    assert pipe.written == []
    out.end(b"bye")
    assert pipe.written == [b"bye"]


@pytest.mark.parametrize(("unsent", "times"), [(100, 0), (101, 1)])
async def test_what_the_transport_itself_holds_counts_and_may_be_one_frame(
    unsent: int, times: int
) -> None:
    reports: list[int] = []
    out, pipe = outgoing(lambda: reports.append(1), push_queue_bytes=100)
    pipe.unsent = unsent
    pipe.on_write = out.pause

    out.send(b"one", is_frame=True)
    await anyio.lowlevel.checkpoint()
    out.send(b"more", is_frame=True)
    assert len(pipe.written) == 1
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()

    assert len(reports) == times
    out.end(b"")


async def test_a_reader_that_takes_nothing_for_too_long_is_reported() -> None:
    reported = anyio.Event()
    out, _ = outgoing(reported.set, write_deadline_s=0.01)
    out.pause()

    with anyio.fail_after(60):
        await reported.wait()


async def test_answers_wait_for_their_reader_however_many_they_are() -> None:
    reports: list[int] = []
    out, pipe = outgoing(lambda: reports.append(1), push_queue_bytes=100, send_queue_bytes=50)
    out.pause()
    for number in range(100):
        out.send(b"%03d" % number, is_frame=True)
    out.resume()
    await anyio.lowlevel.checkpoint()

    assert pipe.written == [b"%03d" % number for number in range(100)]
    assert not reports


async def test_what_can_be_had_later_is_refused_while_there_is_no_room() -> None:
    told: list[bool] = []
    backlog = Backlog()
    out, pipe = outgoing(
        lambda: None, lambda: told.append(out.has_room), backlog, send_queue_bytes=9
    )
    out.pause()
    taken = [out.send(b"four", is_frame=True, if_room=True) for _ in range(5)]
    waiting = backlog.bytes
    out.resume()

    assert taken == [True, True, True, False, False]
    assert (told, waiting, backlog.bytes) == ([False, True], 12, 0)
    assert pipe.written == [b"four"] * 3
    assert out.send(b"more", is_frame=True, if_room=True)
    out.end(b"")


async def test_a_reader_that_takes_a_little_within_each_deadline_is_not() -> None:
    reports: list[int] = []
    out, pipe = outgoing(lambda: reports.append(1), write_deadline_s=0.2)
    pipe.unsent = 100
    out.pause()
    for _ in range(10):
        pipe.unsent -= 1
        await anyio.sleep(0.1)  # five deadlines in all
    assert not reports

    out.resume()
    out.end(b"")
