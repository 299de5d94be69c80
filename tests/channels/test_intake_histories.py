"""Whatever comes between: a message that was taken in has one turn, or one answer without one."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeVar

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.channels.adapters import Parsed
from gateway.channels.intake import Intake
from gateway.domain.channels import ChannelDef, ChannelMemo, Pairing
from gateway.domain.errors import StoreUnavailable
from gateway.domain.inbox import Accepted, Inbound, NewDelivery, ReceivedMessage
from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from tests.channels.people import a_book, said
from tests.fakes.clock import FakeClock
from tests.fakes.doorkeeper import FakeCommands
from tests.fakes.model import StallingModel
from tests.fakes.ports import PartOfChannelStore
from tests.forms import examples
from tests.sessions.stage import Stage, staged

Fault = Literal["before", "after", "cut"]
Step = tuple[Literal["send", "fault", "crash"], tuple[int, ...], Fault]
T = TypeVar("T")

FAMILY = frozenset({"ann", "bob"})
CHANNEL = ChannelDef("chat", "chat", allow_from=FAMILY)
MOST_CRASHES = 2  # with one more a turn is set aside, and ends
MESSAGES = [
    *(said(f"hello {number}", person) for number in range(3) for person in sorted(FAMILY)),
    said("/help", "ann"),
    said("/usage", "bob"),
    *(said(text, person) for person in ("eve", "mallory") for text in ("hi", "hi?")),
]

batches = st.lists(st.integers(0, len(MESSAGES) - 1), min_size=1, max_size=5).map(tuple)
faults: st.SearchStrategy[Fault] = st.sampled_from(("before", "after", "cut"))
steps = st.lists(
    st.tuples(st.sampled_from(("send", "send", "fault", "crash")), batches, faults), max_size=25
)


@dataclass
class Faults:
    """What goes wrong with the next commits: it is refused, or made and not told, or whoever
    waits for it is gone."""

    due: list[Fault] = field(default_factory=list)
    cut: Callable[[], None] = lambda: None

    async def around(self, commit: Callable[[], Awaitable[T]]) -> T:
        fault = self.due.pop(0) if self.due else None
        if fault == "before":
            raise StoreUnavailable("nothing was written")
        done = await commit()
        if fault == "cut":
            self.cut()
        if fault is not None:
            raise StoreUnavailable("nobody knows what was written")
        return done


@dataclass
class Frail(PartOfChannelStore):
    """Implements ChannelEvents and ChannelMemos over a store that fails now and then."""

    stores: Stores
    faults: Faults

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        return await self.stores.channels.knows(channel, account, platform_id)

    async def record(
        self,
        heard: ReceivedMessage,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        events = self.stores.channels
        return await self.faults.around(lambda: events.record(heard, deliveries, memos, asked))

    async def drop_unread(self, one: ReceivedMessage) -> None:
        await self.stores.channels.drop_unread(one)

    async def count_unread(self) -> Mapping[str, int]:
        return await self.stores.channels.count_unread()

    async def unread(
        self, channel: str | None, *, platform_id: str | None = None, limit: int
    ) -> Sequence[ReceivedMessage]:
        return await self.stores.channels.unread(channel, platform_id=platform_id, limit=limit)

    async def forget_received(self, *, before: object, limit: int) -> int:
        raise AssertionError("nothing is so old")

    async def read_memos(self, channel: str, account: str) -> Sequence[ChannelMemo]:
        return await self.stores.channels.read_memos(channel, account)

    async def write_memos(self, *memos: ChannelMemo) -> None:
        await self.faults.around(lambda: self.stores.channels.write_memos(*memos))


@dataclass
class History:
    """What platforms sent to one gateway after the other, over the same store."""

    opened: Callable[[], AbstractAsyncContextManager[Stores]]
    taken: set[int] = field(default_factory=set)  # these were acknowledged
    clock: FakeClock = field(default_factory=FakeClock)
    starts: int = 0
    offset: int = 0

    async def live(self, todo: list[Step]) -> None:
        while True:
            async with (
                self.opened() as stores,
                staged(StallingModel(), stores, ids_from=1_000 * self.starts) as stage,
            ):
                self.starts += 1
                await stage.front.intake.resume()
                faults = Faults()
                intake = self._intake(stage, stores, faults)
                is_dead = await self._until_crash(todo, intake, faults)
                if not is_dead:
                    await self._finish(intake, faults, stores)
                stage.crash()
                if not is_dead:
                    return

    def _intake(self, stage: Stage, stores: Stores, faults: Faults) -> Intake:
        reception, frail = stage.front.intake, Frail(stores, faults)

        async def accept(inbound: Inbound) -> Accepted:
            return await faults.around(lambda: reception.accept(inbound))

        book = a_book(stores, self.clock)
        book.ids = reception.ids
        kept = (frail, self.clock, lambda: None)
        return Intake(accept, *kept, book, FakeCommands().run)

    async def _until_crash(self, todo: list[Step], intake: Intake, faults: Faults) -> bool:
        while todo:
            match todo.pop(0):
                case "send", batch, _:
                    await self._send_copies(batch, intake, faults)
                case "fault", _, fault:
                    faults.due.append(fault)
                case "crash", _, _ if self.starts <= MOST_CRASHES:
                    return True
        return False

    async def _send_copies(self, batch: tuple[int, ...], intake: Intake, faults: Faults) -> None:
        """The same by two ways at once; one may vanish in the middle."""
        async with anyio.create_task_group() as group:
            faults.cut = group.cancel_scope.cancel
            group.start_soon(self._send, batch, intake)
            group.start_soon(self._send, batch[::-1], intake)

    async def _send(self, batch: tuple[int, ...], intake: Intake) -> bool:
        self.offset += 1
        parsed = Parsed(tuple(MESSAGES[one] for one in batch), state=str(self.offset))
        try:
            await intake.process(CHANNEL, parsed)
        except StoreUnavailable:
            return False
        self.taken.update(batch)
        return True

    async def _finish(self, intake: Intake, faults: Faults, stores: Stores) -> None:
        faults.due.clear()
        taken = set(self.taken)
        before = await outcomes(stores)
        assert await self._send(tuple(range(len(MESSAGES))), intake)
        after = await outcomes(stores)
        family = [one for one, message in enumerate(MESSAGES) if message.sender.id in FAMILY]
        assert all(before[MESSAGES[one].platform_id] == 1 for one in taken & set(family))
        assert [after[MESSAGES[one].platform_id] for one in family] == [1] * len(family)
        for person in ("eve", "mallory"):  # one notice, and whoever waits was told the code
            told = sum(after[one.platform_id] for one in MESSAGES if one.sender.id == person)
            waits = await stores.channels.find_pairing("chat", "default", person)
            assert (told, waits is not None) == (1, True)
        (memo,) = await stores.channels.read_memos("chat", "default")
        assert memo == replace(memo, text=str(self.offset))


async def outcomes(stores: Stores) -> Counter[str]:
    """Of each message: its turns and its answers without one."""
    turns = [entry.new.platform_id or "" for entry in await stores.inbox.unfinished()]
    late = FakeClock().now() + timedelta(9)
    due = await stores.outbox.due("chat", now=late, limit=999)
    answers = [one.new.whence or "" for one in due]
    ids = [one.platform_id for one in MESSAGES]
    return Counter([*turns, *(one for text in answers for one in ids if f'"{one}"' in text)])


@pytest.mark.parametrize(("kind", "count"), [("memory", 150), ("embedded", 40)])
def test_a_message_that_was_taken_in_is_answered_once_whatever_happens(
    kind: str, count: int
) -> None:
    @settings(max_examples=examples(count), deadline=None, suppress_health_check=[*HealthCheck])
    @given(todo=steps)
    def play(todo: list[Step]) -> None:
        with TemporaryDirectory() as folder:
            anyio.run(_played, kind, Path(folder), todo)

    play()


async def _played(kind: str, folder: Path, todo: list[Step]) -> None:
    async with open_store("memory", folder, clock=FakeClock()) as shelf:

        class Kept:
            """Memory is not lost with the gateway that used it."""

            async def __aenter__(self) -> Stores:
                return shelf

            async def __aexit__(self, *error: object) -> None:
                pass

        def opened() -> AbstractAsyncContextManager[Stores]:
            if kind == "memory":
                return Kept()
            return open_store("embedded", folder / "data", clock=FakeClock())

        await History(opened).live(list(todo))
