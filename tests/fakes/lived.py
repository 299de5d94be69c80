"""A store in which some of everything has happened, and all that its ports tell of it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from gateway.domain.budgets import Amount, Grant, RecordQuery, Scope, Tally, scopes_of
from gateway.domain.channels import ChannelMemo, Pairing
from gateway.domain.events import AuditEvent
from gateway.domain.facts import Claim, FactQuery, FactView, SaidSource, scope_of
from gateway.domain.ids import RunId
from gateway.domain.inbox import NewDelivery
from gateway.domain.ports import Stores
from gateway.domain.sessions import SessionQuery
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.store import NOON, a_space, an_ending, an_entry, an_exchange, session_key

ANN, BOB = session_key("ann"), session_key("bob")
HERS = FactView(scope=scope_of(ANN, None))
SAID = "Luna the dog likes carrots"


async def live(stores: Stores) -> None:
    """Messages that were answered, that wait and that are at work; a delivery that waits and one that is
    being sent; facts, spending, a call that is not settled, people, plugins' values."""
    await stores.inbox.accept(an_entry("first", ANN, platform_id="p1", digest="d"), begin=True)
    deliveries = [
        NewDelivery(f"to-{name}", "chat", "default", "room", None, f"for {name}")
        for name in ("send", "wait")
    ]
    ended = an_ending(
        "first", ANN, nodes=an_exchange("first", SAID, "noted"), deliveries=deliveries
    )
    await stores.inbox.finish(ended)
    await stores.outbox.sending("to-send", 0)
    await stores.inbox.accept(an_entry("working", ANN), begin=True)
    await stores.journal.append(RunId("run-working"), 0, lambda: b"a part")
    await stores.inbox.accept(an_entry("waiting", BOB), begin=False)
    await _learn(stores)
    await _spend(stores)
    at = NOON + timedelta(hours=1)
    pairing = Pairing("chat", "default", "eve", "Eve", "asked", "digest", NOON, at)
    await stores.channels.may_ask(pairing)
    await stores.channels.write_memos(ChannelMemo("chat", "default", "adapter", '{"offset":7}'))
    await stores.tools.set(a_space(), "a/key", "a value")
    await stores.sessions.write_settings("ann", '{"a":1}', expected=None)
    await stores.audit.append(
        AuditEvent(NOON, "token.changed", "config", {"what": "tokens.laptop"})
    )
    await stores.audit.append(AuditEvent(NOON, "budget.refused", str(ANN), {"scope": "daily"}))


async def _learn(stores: Stores) -> None:
    source = SaidSource("first-1", ANN, NOON, SAID, "ann")
    for number, where in enumerate(("Paris", "Rome")):
        said = NOON + timedelta(days=number)
        claim = Claim("user", "lives in", where, True, said, ANN, source=source)
        await stores.facts.add_facts(str(HERS.scope), [claim], ids=[f"f{number}"], now=said)


async def _spend(stores: Stores) -> None:
    def always(_: Sequence[Tally]) -> Grant:
        return Grant(90, Amount(100, 7))

    for name in ("paid", "open"):
        reservation, _ = await stores.ledger.reserve(a_reservation(name, ANN), always)
        if name == "paid":
            await stores.ledger.settle(a_record(reservation, nano_usd=3))


async def told(stores: Stores) -> dict[str, Any]:
    """Whatever does not depend on the engine."""
    days = scopes_of(ANN, f"{NOON:%Y-%m-%d}")
    # What is indexed off the path comes later on a copy: it is looked at on its own.
    await stores.facts.index_turns(await stores.facts.unindexed(limit=99), limit=999)
    scopes: Sequence[Scope] = days
    letters = [await stores.outbox.due("chat", now=NOON + timedelta(days=1), limit=9)]
    return {
        "sessions": (await stores.sessions.list_sessions(SessionQuery(limit=99))).sessions,
        "path": await stores.sessions.path(ANN, limit=99),
        "unfinished": [(one.new, one.attempts) for one in await stores.inbox.unfinished()],
        "run": await stores.inbox.find_run(RunId("run-first")),
        "journal": await stores.journal.read(RunId("run-working")),
        "facts": await stores.facts.select_facts(FactQuery(HERS, with_history=True)),
        "why": await stores.facts.origin_of("f0"),
        "found facts": await stores.facts.facts_matching(HERS, ["rome"], limit=9),
        "found turns": await stores.facts.find_turns(ANN, ["carrots"], limit=9),
        "tallies": await stores.ledger.tallies(scopes),
        "records": (await stores.ledger.records(RecordQuery(limit=99))).records,
        "unsettled": await stores.ledger.unsettled(),
        "letters": letters,
        "sending": [one.new.id for one in await stores.outbox.interrupted()],
        "pairings": await stores.channels.list_pairings(limit=9),
        "memos": await stores.channels.read_memos("chat", "default"),
        "values": await stores.tools.get(a_space(), "a/key"),
        "settings": await stores.sessions.read_settings("ann"),
        "audit": await stores.audit.after(0, limit=99),
    }
