"""Channels, and people who write to them."""

from dataclasses import replace
from typing import Any

from gateway.channels.access import AccessControl, Answered, Verdict
from gateway.channels.adapters import Incoming, Sender
from gateway.domain.channels import ChannelDef, Pairing
from gateway.domain.inbox import ReceivedMessage
from gateway.domain.ports import Clock, Stores
from tests.fakes.clock import CountingIds

CHANNEL = ChannelDef("chat", "chat")


def a_book(stores: Stores, clock: Clock) -> AccessControl:
    return AccessControl(stores.channels, stores.audit, clock, CountingIds())


async def commit(stores: Stores, asked: Pairing) -> bool:
    """As the intake does it, with what the person is told."""
    name = f"{asked.person} at {asked.asked_at}"
    heard = ReceivedMessage(asked.channel, asked.account, name, "told", asked.asked_at)
    return await stores.channels.record(heard, asked=asked)


async def ask(
    stores: Stores,
    book: AccessControl,
    sender: Sender,
    channel: str = "chat",
    account: str = "default",
) -> str | None:
    """The code."""
    asked = await book.ask(channel, account, sender)
    if asked is None:
        return None
    await commit(stores, asked[0])
    book.report_request(asked[0])
    return asked[1]


async def judged(
    stores: Stores, door: AccessControl, channel: ChannelDef, message: Incoming
) -> Verdict:
    """And what it wants to be committed is."""
    verdict = await door.judge(channel, message)
    if isinstance(verdict, Answered) and verdict.asked is not None:
        await commit(stores, verdict.asked)
    return verdict


def said(text: str = "hello", person: str = "ann", **more: Any) -> Incoming:
    """In a direct chat."""
    message = Incoming(person, Sender(person, person.title()), text, f"m-{person}-{text}")
    return replace(message, **more)


def in_room(text: str = "hello", person: str = "ann", **more: Any) -> Incoming:
    """In the room `den`, to us."""
    return said(text, person, **{"peer": "den", "kind": "group", "mentions_me": True, **more})


def code_in(verdict: Verdict) -> str:
    assert isinstance(verdict, Answered)
    return verdict.text.split("approve ", 1)[1][:9]
