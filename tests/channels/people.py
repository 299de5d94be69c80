"""Channels, and people who write to them."""

from dataclasses import replace
from typing import Any

from gateway.channels.pairing import PairingBook
from gateway.domain.adapters import Incoming, Sender
from gateway.domain.channels import ChannelDef, Told, Verdict
from gateway.domain.ports import Clock, Stores
from tests.fakes.clock import CountingIds

CHANNEL = ChannelDef("chat", "chat")


def a_book(stores: Stores, clock: Clock) -> PairingBook:
    return PairingBook(stores.pairings, stores.audit, clock, CountingIds())


def said(text: str = "hello", person: str = "ann", **more: Any) -> Incoming:
    """In a direct chat."""
    message = Incoming(person, Sender(person, person.title()), text, f"m-{person}-{text}")
    return replace(message, **more)


def in_room(text: str = "hello", person: str = "ann", **more: Any) -> Incoming:
    """In the room `den`, to us."""
    return said(text, person, **{"peer": "den", "kind": "group", "mentions_me": True, **more})


def code_in(verdict: Verdict) -> str:
    assert isinstance(verdict, Told)
    return verdict.text.split("approve ", 1)[1][:9]
