"""audit.tail and audit.verify: pages of the chain, and the first entry that breaks it."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.errors import Forbidden
from gateway.domain.events import AuditEntry, AuditEvent
from gateway.domain.ports import Stores
from gateway.web.identity import Principal
from gateway.web.operating import AuditMethods
from gateway.web.rpc import handlers_of
from tests.fakes.store import NOON, open_memory
from tests.web.methods.calling import call


async def told(stores: Stores, name: str, /, **params: Any) -> Any:
    methods = handlers_of(AuditMethods(stores.audit, at_once=2))
    return await call(methods, name, **params)


async def filled(stores: Stores, count: int) -> None:
    for number in range(1, count + 1):
        await stores.audit.append(AuditEvent(NOON, "budget.changed", "config", {"n": number}))


async def test_the_tail_is_told_in_pages() -> None:
    async with open_memory() as stores:
        await filled(stores, 3)
        newest = await told(stores, "audit.tail", limit=2)
        rest = await told(stores, "audit.tail", limit=2, before=2)

    assert [entry["detail"]["n"] for entry in newest["entries"]] == [3, 2]
    assert ([entry["seq"] for entry in rest["entries"]], newest["more"], rest["more"]) == (
        *([1], True),
        False,
    )


async def test_a_long_chain_is_verified_piece_by_piece() -> None:
    async with open_memory() as stores:
        await filled(stores, 5)
        (last,) = await stores.audit.newest()
        verdict = await told(stores, "audit.verify", head=last.hash)

    assert verdict == {"ok": True, "entries": 5, "head": last.hash, "why": None}


@pytest.mark.parametrize("lost", ["changed", "taken out", "cut off"])
async def test_what_was_tampered_with_is_found(lost: str) -> None:
    class Tampered:
        def __init__(self, stores: Stores) -> None:
            self.append, self.append_soon = stores.audit.append, stores.audit.append_soon
            self.newest, self._of = stores.audit.newest, stores

        async def after(self, seq: int, *, limit: int) -> list[AuditEntry]:
            one, two, three = await self._of.audit.after(0, limit=3)
            found = {
                "changed": [one, replace(two, detail='{"n":9}'), three],
                "taken out": [one, three],
                "cut off": [one, two],
            }[lost]
            return [entry for entry in found if entry.seq > seq]

    async with open_memory() as stores:
        await filled(stores, 3)
        (last,) = await stores.audit.newest()
        tampered = replace(stores, audit=Tampered(stores))
        verdict = await told(tampered, "audit.verify", head=last.hash)

    assert verdict["ok"] is False
    assert (
        verdict["why"]
        == {
            "changed": "entry 2 does not follow the entry before it",
            "taken out": "entry 3 does not follow the entry before it",
            "cut off": "no entry has that hash: the end is missing",
        }[lost]
    )


async def test_who_reaches_some_agents_only_is_not_told() -> None:
    some = Principal("s", frozenset({"admin"}), frozenset({"main"}))

    async with open_memory() as stores:
        with pytest.raises(Forbidden):
            await told(stores, "audit.tail", by=some)
