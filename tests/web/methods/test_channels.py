"""channel.*: the state of channels and their dead letters."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.api.errors import Forbidden
from gateway.domain.channels import ChannelStatus, FlowProgress
from gateway.domain.errors import NotFound
from gateway.domain.inbox import DeliveryState, NewDelivery, ReceivedMessage
from gateway.domain.ports import Stores
from gateway.web.identity import Principal
from gateway.web.operating import LONGEST_TEXT, ChannelMethods
from gateway.web.rpc import Handler, handlers_of
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, open_memory
from tests.web.methods.calling import call

STATUSES = (
    ChannelStatus("shop", "webhook", "a", "webhook", "connected", receiving=FlowProgress(NOON, 3)),
    ChannelStatus("chat", "telegram", "b", None, "refused", "no secret", refused={"wrong": 2}),
)


@dataclass
class Desk:
    stores: Stores
    nudges: list[None]
    methods: Mapping[str, Handler]

    async def told(self, name: str, /, **params: Any) -> Any:
        return await call(self.methods, name, **params)

    async def ended(self, name: str, state: DeliveryState, channel: str = "shop") -> None:
        new = NewDelivery(name, channel, "a", "p", None, f"text of {name}")
        heard = ReceivedMessage(channel, "a", name, "told", NOON)
        await self.stores.channels.record(heard, [new])
        await self.stores.outbox.sending(name, 0)
        await self.stores.outbox.settle(name, state, at=NOON, why="it is full")


async def _nobody_takes(letter: ReceivedMessage) -> None:
    raise AssertionError("nothing came in")


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    async with open_memory() as stores:
        nudges: list[None] = []
        kept = (stores.outbox, stores.channels)
        methods = handlers_of(
            ChannelMethods(
                lambda: STATUSES, *kept, lambda: nudges.append(None), FakeClock(), _nobody_takes
            )
        )
        yield Desk(stores, nudges, methods)


async def test_channels_are_listed_with_what_waits_and_what_is_lost() -> None:
    async with desk() as it:
        for name, state in {"x": "failed", "y": "unknown", "z": "pending", "s": "sent"}.items():
            await it.ended(name, state)  # type: ignore[arg-type]  # a table

        shop, chat = (await it.told("channel.list"))["channels"]

    quiet = {"last_at": None, "count": 0, "failing_since": None, "why": None}
    assert shop["receiving"] == {**quiet, "last_at": "2026-01-01T12:00:00Z", "count": 3}
    assert (shop["sending"], shop["pending"], shop["dead"]) == (quiet, 1, 2)
    assert (chat["state"], chat["why"], chat["refused"]) == ("refused", "no secret", {"wrong": 2})


async def test_dead_letters_are_told_in_pages_the_newest_first() -> None:
    async with desk() as it:
        for name in "abc":
            await it.ended(name, "failed")
        await it.ended("other", "failed", channel="chat")

        page = await it.told("channel.dead_letters", channel="shop", limit=2)
        rest = await it.told("channel.dead_letters", before=page["letters"][-1]["place"])

    assert ([one["id"] for one in page["letters"]], page["more"]) == (["c", "b"], True)
    assert ([one["id"] for one in rest["letters"]], rest["more"]) == (["a"], False)
    assert page["letters"][0] == {
        "id": "c",
        "place": page["letters"][0]["place"],
        "channel": "shop",
        "account": "a",
        "peer": "p",
        "state": "failed",
        "why": "it is full",
        "attempts": 1,
        "text": "text of c",
        "arrived": 0,
        "run_id": None,
        "at": "2026-01-01T12:00:00Z",
    }


async def test_what_no_adapter_could_read_is_listed_and_cut() -> None:
    lost = ReceivedMessage("shop", "a", "sha256:00", "unreadable", NOON, "x" * (LONGEST_TEXT + 1))
    async with desk() as it:
        await it.stores.channels.record(lost)
        await it.stores.channels.record(replace(lost, platform_id="1", outcome="told"))

        (one,) = (await it.told("channel.dead_letters"))["unread"]
        later = await it.told("channel.dead_letters", before=1)

    assert (one["id"], one["text"]) == ("sha256:00", "x" * LONGEST_TEXT)
    assert later["unread"] == []


async def test_a_letter_is_sent_again_or_dropped_once() -> None:
    async with desk() as it:
        await it.ended("a", "failed")
        await it.ended("b", "unknown")

        again = await it.told("channel.resubmit", id="a")
        dropped = await it.told("channel.drop", id="b")
        due = await it.stores.outbox.due("shop", now=NOON, limit=9)
        for name, of in [("channel.resubmit", "a"), ("channel.drop", "b"), ("channel.drop", "?")]:
            with pytest.raises(NotFound):
                await it.told(name, id=of)

    assert (again, dropped) == ({"id": "a", "state": "pending"}, {"id": "b", "state": "dropped"})
    assert ([one.new.id for one in due], len(it.nudges)) == (["a"], 1)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("channel.list", {}),
        ("channel.dead_letters", {}),
        ("channel.resubmit", {"id": "a"}),
        ("channel.drop", {"id": "a"}),
    ],
)
async def test_who_reaches_some_agents_only_is_told_nothing(
    name: str, params: dict[str, str]
) -> None:
    some = Principal("s", frozenset({"admin"}), frozenset({"main"}))
    async with desk() as it:
        with pytest.raises(Forbidden):
            await it.told(name, by=some, **params)
