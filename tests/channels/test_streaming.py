"""Drafts and typing show that an answer is coming, and never stand in its way."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from gateway.agent.effects import Moment
from gateway.channels.adapter_json import write_context
from gateway.channels.adapters import Outbound, ReplyContext, TextLimits
from gateway.channels.delivery import QUIET_S, Draft, Drafts, PlatformClient
from gateway.domain.channels import ChannelDef
from gateway.domain.ids import AgentId, MessageId, RunId, SessionKey
from gateway.domain.inbox import Entry, NewEntry
from gateway.domain.messages import Chunk
from gateway.domain.ports import Fetched, FetchRequest, HttpFailed
from gateway.sessions.runs import LiveRun
from tests.fakes.clock import FakeClock
from tests.fakes.fetch import FakeFetch, Said
from tests.fakes.store import NOON
from tests.fakes.writer import Reply, WritingAdapter, keyed, posts

RUN = RunId("r1")
NEW = NewEntry(MessageId("m1"), RUN, SessionKey(AgentId("a"), "chat", "bot"), "hi", NOON)
EDITS = Outbound(message_id="id", edits=True)
TYPES = Outbound(typing_every_s=5.0)


def editable(reply: Reply) -> object:
    made = posts(reply)
    assert isinstance(made, dict)
    return {**made, "edit": True}


def told(reply: Reply) -> dict[str, object]:
    made = keyed(reply)
    assert isinstance(made, dict)
    return made


def fine(_: FetchRequest) -> Said:
    return Fetched(200, (), b'{"id":"m1"}')


@dataclass
class Stage:
    clock: FakeClock
    fetch: FakeFetch
    run: LiveRun
    streaming: Drafts

    async def say(self, text: str) -> None:
        self.run.emit(Chunk("content", {"content": text}))
        await anyio.wait_all_tasks_blocked()

    async def later(self, seconds: float) -> None:
        """In steps, as time goes by."""
        for _ in range(round(seconds * 2)):
            self.clock.move(0.5)
            await anyio.wait_all_tasks_blocked()

    async def end(self) -> None:
        self.run.seal(Chunk("done", {}))
        self.run.publish()
        await anyio.wait_all_tasks_blocked()

    @property
    def sent(self) -> list[str]:
        return [
            f"{ask.url.removeprefix('https://api.example')} {ask.body.decode()}".strip()
            for ask, _ in self.fetch.asked
        ]


@asynccontextmanager
async def staged(
    outbound: Outbound,
    answer: Callable[[FetchRequest], Said] = fine,
    *,
    formats: Callable[[Reply], object] = editable,
    is_group: bool = False,
    gate: anyio.Event | None = None,
    state: str = "running",
) -> AsyncIterator[Stage]:
    clock, fetch = FakeClock(), FakeFetch(answer, gate)
    run = LiveRun(Entry(NEW, 1, "running", 1))
    run.start(1, Moment(NOON, 0.0))
    run.state = state
    adapter = WritingAdapter(formats, outbound, {"limits": TextLimits(text=20)})
    post = PlatformClient(ChannelDef("chat", "fake"), adapter, fetch, clock)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            streaming = Drafts(post, {RUN: run}.get, group)
            streaming.start(RUN, write_context(ReplyContext("p", is_group=is_group)))
            await anyio.wait_all_tasks_blocked()
            yield Stage(clock, fetch, run, streaming)
            group.cancel_scope.cancel()


async def test_a_draft_is_posted_once_and_edited_as_the_text_grows() -> None:
    async with staged(EDITS) as stage:
        await stage.later(3)
        await stage.say("Hel")
        await stage.later(1)
        await stage.say("lo")
        await stage.later(3)

        assert stage.sent == ["/send/p Hel", "/edit/m1 Hello"]
        assert await stage.streaming.draft_of(RUN) == Draft("m1", "Hello")


async def test_what_is_shown_again_after_something_else_is_an_edit_of_its_own() -> None:
    async with staged(EDITS, formats=lambda reply: {**told(reply), "edit": True}) as stage:
        for text in ("same", "else", "same"):
            stage.run.emit(Chunk("tool_result", {"tool_call": {}}))
            await stage.say(f"{text}\n\n")
            await stage.later(2)
            await stage.say("\n")
            await stage.later(2)

        keys = [dict(ask.headers)["x-key"] for ask, _ in stage.fetch.asked]
        assert [sent.split()[-1] for sent in stage.sent] == ["same", "else", "same"]
        assert len({*keys}) == 3


async def test_in_a_room_a_draft_is_edited_less_often() -> None:
    async with staged(EDITS, is_group=True) as stage:
        await stage.say("a")
        for _ in range(6):
            await stage.later(1)
            await stage.say("b")

        assert stage.sent == ["/send/p a", "/edit/m1 abbb"]


async def test_a_draft_never_grows_beyond_what_a_message_holds() -> None:
    async with staged(EDITS) as stage:
        await stage.say("one two three four five six")
        await stage.later(1)
        await stage.say(" seven eight")
        await stage.later(3)

        assert stage.sent == ["/send/p one two three four"]


async def test_what_was_said_before_a_tool_was_called_makes_room_for_the_answer() -> None:
    async with staged(EDITS) as stage:
        await stage.say("Let me look.")
        await stage.later(1)
        stage.run.emit(Chunk("tool_result", {"tool_call": {}}))
        await stage.later(2)
        await stage.say("It is 4.")
        await stage.later(1)

        assert stage.sent == ["/send/p Let me look.", "/edit/m1 It is 4."]


async def test_a_draft_that_fails_is_the_last_one_and_the_answer_is_sent_anew() -> None:
    for said in (HttpFailed("network", "gone"), Fetched(400, (), b""), Fetched(200, (), b"")):
        async with staged(EDITS, lambda _, said=said: said) as stage:  # type: ignore[misc]  # bound early
            await stage.say("a")
            await stage.later(1)
            await stage.say("b")
            await stage.later(5)

            assert stage.sent == ["/send/p a"]
            assert await stage.streaming.draft_of(RUN) is None


async def test_a_draft_that_goes_wrong_in_a_way_nobody_foresaw_ends_nothing_else() -> None:
    def explode(_: FetchRequest) -> Said:
        raise OverflowError("an answer as no platform gives it")

    async with staged(EDITS, explode) as stage:
        await stage.say("a")
        await stage.later(5)

        assert stage.sent == ["/send/p a"]
        assert await stage.streaming.draft_of(RUN) is None


async def test_what_could_not_be_edited_later_is_no_draft() -> None:
    async with staged(EDITS, formats=posts) as stage:
        await stage.say("a")
        await stage.later(5)

        assert stage.sent == []


async def test_an_answer_waits_for_the_draft_that_is_under_way() -> None:
    async with staged(EDITS, gate=anyio.Event()) as stage:
        await stage.say("a")
        await stage.later(1)
        await stage.end()
        found: list[Draft | None] = []

        async def ask() -> None:
            found.append(await stage.streaming.draft_of(RUN))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert found == []
            stage.fetch.open()

        assert found == [Draft("m1", "a")]


async def test_typing_is_shown_until_the_run_has_ended() -> None:
    async with staged(TYPES) as stage:
        await stage.later(11)
        await stage.end()
        await stage.later(11)

        assert stage.sent == ["/typing/p"] * 3


async def test_typing_begins_when_the_run_does_however_long_it_waits() -> None:
    async with staged(TYPES, state="queued") as stage:
        await stage.later(2 * QUIET_S)
        assert stage.sent == []

        stage.run.state = "running"
        await stage.later(5)

        assert stage.sent == ["/typing/p"]


async def test_typing_is_not_shown_long_without_progress() -> None:
    async with staged(TYPES) as stage:
        await stage.later(2 * QUIET_S)

        assert len(stage.sent) == QUIET_S / 5


async def test_where_a_platform_has_neither_nothing_is_followed() -> None:
    async with staged(Outbound()) as stage:
        await stage.say("a")
        await stage.later(5)

        assert stage.sent == []
        assert await stage.streaming.draft_of(RUN) is None
