"""budget.*, audit.*, channel.*, pair.*: what was spent, what changed authority, how channels fare, who may talk."""

import csv
import io
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json, to_jsonable_python
from starlette.requests import Request
from starlette.responses import Response

from gateway.api import operating as api
from gateway.api.declarations import Params, build, plain
from gateway.api.errors import InvalidParams
from gateway.api.http import RECORDS, RecordsQuery
from gateway.domain.budgets import (
    Budgets,
    Limit,
    RecordQuery,
    Resync,
    Scope,
    Tally,
    TokenRecord,
    Unit,
    day_of,
    shown,
)
from gateway.domain.channels import Approvals, ChannelStatus, Pairing
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import AuditEntry
from gateway.domain.inbox import HeardMessage
from gateway.domain.outbox import Delivery
from gateway.domain.ports import Audit, ChannelStore, Clock, Ledger, Outbox
from gateway.sessions.intake import Front
from gateway.web.asgi import Described, query_of, require_scope
from gateway.web.identity import Principal, may_use, visible_key
from gateway.web.responses import json_response
from gateway.web.rpc import Call

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
LONGEST_TEXT = 4_000  # characters of a letter that are shown
WAITING = frozenset({"pending", "sending"})
DEAD = frozenset({"unknown", "failed"})


class Metering(Protocol):
    budgets: Budgets
    clock: Clock

    async def resync(self, actor: str) -> Resync: ...


@dataclass(frozen=True, slots=True)
class BudgetMethods:
    front: Front
    spending: Ledger
    meter: Metering

    async def periods(self) -> list[api.BudgetRow]:
        """The rows of the day and the month."""
        return await self._rows(self._scopes())

    async def everything(self) -> list[api.BudgetRow]:
        """With those of each agent."""
        return await self._rows(self._scopes(self.front.agents))

    def _scopes(self, agents: Iterable[str] = ()) -> list[Scope]:
        day = day_of(self.meter.clock.now())
        own = [Scope("agent", name) for name in sorted(agents)]
        return [Scope("day", day), Scope("month", day[:7]), *own]

    async def _rows(self, scopes: Sequence[Scope]) -> list[api.BudgetRow]:
        """A row for each scope and unit that has a limit; without one, its tokens."""
        tallies = await self.spending.tallies(scopes)
        rows: list[api.BudgetRow] = []
        for scope, tally in zip(scopes, tallies, strict=True):
            rows += budget_rows(scope, tally, self.meter.budgets.limit(tally.scope))
        return rows

    async def budget_status(self, call: Call, params: api.BudgetOf) -> api.BudgetStatus:
        scopes = self._scopes(one for one in self.front.agents if may_use(call.principal, one))
        if params.session_key is not None:
            key = visible_key(call.principal, params.session_key)
            scopes.insert(0, Scope("session", str(key)))
        return api.BudgetStatus(budgets=await self._rows(scopes))

    async def budget_resync(self, call: Call, _: Params) -> api.BudgetResync:
        done = await self.meter.resync(call.principal.name)
        return build(api.BudgetResync, done, changed=done.is_changed, was=done.was or None)

    def routes(self) -> Sequence[Described]:
        return (Described(RECORDS, self.table),)

    async def table(self, request: Request) -> Response:
        principal = require_scope(request, "looking at records", "read")
        params = query_of(request, RecordsQuery)
        accepted = "csv" if "text/csv" in request.headers.get("accept", "") else "json"
        page = await self._page(principal, params)
        if (params.format or accepted) == "json":
            return json_response(page)
        headers = {"x-exogate-more": str(page.more).lower()}
        return Response(as_csv(page.records), headers=headers, media_type="text/csv")

    async def budget_records(self, call: Call, params: api.BudgetRecords) -> api.SpendingPage:
        return await self._page(call.principal, params)

    async def _page(self, principal: Principal, params: api.BudgetRecords) -> api.SpendingPage:
        page = await self.spending.records(_query(principal, params))
        return api.SpendingPage(
            records=[spending_record(one) for one in page.records], more=page.more
        )


def budget_rows(wanted: Scope, tally: Tally, limit: Limit) -> Sequence[api.BudgetRow]:
    """A row for each unit that is bounded; without any, one for tokens."""
    scope, why = tally.scope, _why_ahead(wanted, tally.scope)
    bounds: Sequence[tuple[Unit, int | None]] = limit.bounds() or [("tokens", None)]
    return [
        api.BudgetRow(
            scope=str(scope),
            limit=None if bound is None else shown(unit, bound),
            used=shown(unit, tally.used.tokens if unit == "tokens" else tally.used.nano_usd),
            reserved=shown(unit, tally.held.tokens if unit == "tokens" else tally.held.nano_usd),
            period_start=scope.period_start or tally.since,
            resets_at=scope.resets_at,
            unit=unit,
            why=why,
        )
        for unit, bound in bounds
    ]


def _why_ahead(wanted: Scope, counted: Scope) -> str | None:
    """Why another day or month counts than that of the clock."""
    if counted == wanted:
        return None
    return (
        f"the clock was at {counted.name} before, and says {wanted.name} now: spending goes on to "
        f"count in {counted.name}, so that nothing that was spent is free again. If {wanted.name} is "
        "right, run `exogate budget resync`"
    )


def _query(principal: Principal, params: api.BudgetRecords) -> RecordQuery:
    """Who may reach some agents only asks for one of them."""
    key = None if params.session_key is None else visible_key(principal, params.session_key)
    agent = params.agent
    if principal.agents is not None and key is None:
        if agent is None:
            raise InvalidParams("agent: your token reaches some agents only; say which")
        if agent not in principal.agents:
            raise NotFound(f"agent {agent[:64]!r}")
    return build(RecordQuery, params, session_key=key, since=params.from_, until=params.to)


def spending_record(one: TokenRecord) -> api.SpendingRecord:
    agent, cost = one.session_key.agent, shown("usd", one.nano_usd)
    return build(api.SpendingRecord, one, timestamp=one.at, agent_id=agent, cost_estimate_usd=cost)


def as_csv(rows: Sequence[api.SpendingRecord]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [name for name, _ in api.SpendingRecord.defaults])
    writer.writeheader()
    for row in rows:
        shown = to_jsonable_python(plain(row))
        writer.writerow({name: _no_formula(value) for name, value in shown.items()})
    return text.getvalue()


def _no_formula(value: object) -> object:
    """Names that users choose must not be run by the spreadsheet that opens them."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


@dataclass(frozen=True, slots=True)
class AuditMethods:
    audit: Audit
    at_once: int = 1_000

    async def audit_tail(self, call: Call, params: api.AuditTail) -> api.AuditPage:
        found = await self.audit.newest(before=params.before, limit=params.limit + 1)
        entries = [
            build(api.AuditRow, one, detail=from_json(one.detail)) for one in found[: params.limit]
        ]
        return api.AuditPage(entries=entries, more=len(found) > params.limit)

    async def audit_verify(self, call: Call, params: api.AuditVerify) -> api.AuditVerdict:
        """Reads all of it, a little at a time. `head` is a hash that was told earlier: an end that
        was cut off leaves a chain that is whole, but without that hash."""
        last: AuditEntry | None = None
        is_known = params.head is None
        while entries := await self.audit.after(last.seq if last else 0, limit=self.at_once):
            for entry in entries:
                if not entry.follows(last):
                    return _verdict(last, f"entry {entry.seq} is not what was written there")
                last, is_known = entry, is_known or entry.hash == params.head
        return _verdict(last, None if is_known else "no entry has that hash: the end is missing")


def _verdict(last: AuditEntry | None, why: str | None) -> api.AuditVerdict:
    entries, head = (last.seq, last.hash) if last else (0, None)
    return api.AuditVerdict(ok=why is None, entries=entries, head=head, why=why)


@dataclass(frozen=True, slots=True)
class ChannelMethods:
    statuses: Callable[[], Sequence[ChannelStatus]]
    letters: Outbox
    events: ChannelStore
    nudge: Callable[[], None]  # something is to be delivered
    clock: Clock
    take_again: Callable[[HeardMessage], Awaitable[None]]  # raises Conflict

    async def channel_list(self, call: Call, params: Params) -> api.ChannelList:
        tally = await self.letters.tally()
        unread = await self.events.count_unread()
        pending, dead = held(tally, WAITING), held(tally, DEAD)
        channels = [
            build(
                api.Channel,
                one,
                pending=pending[one.name],
                dead=dead[one.name],
                unread=unread.get(one.name, 0),
            )
            for one in self.statuses()
        ]
        return api.ChannelList(channels=channels)

    async def channel_dead_letters(self, call: Call, params: api.DeadLetters) -> api.DeadLetterPage:
        channel, most = params.channel, params.limit
        found = await self.letters.dead_letters(channel, before=params.before, limit=most + 1)
        unread = [] if params.before else await self.events.unread(channel, limit=most)
        outgoing = held(await self.letters.tally(), DEAD)
        incoming = Counter(await self.events.count_unread())
        counts = [one.total() if channel is None else one[channel] for one in (outgoing, incoming)]
        return api.DeadLetterPage(
            letters=[_letter(one) for one in found[:most]],
            more=len(found) > most,
            unread=[_unread(one) for one in unread],
            counts=api.LetterCounts(outgoing=counts[0], incoming=counts[1]),
        )

    async def channel_resubmit(self, call: Call, params: api.OfLetter) -> api.LetterSettled:
        if (found := await self._unread(params)) is not None:
            await self.take_again(found)
            await self.events.drop_unread(found)
            return api.LetterSettled(id=params.id, state="taken")
        await self.letters.resubmit(params.id, now=self.clock.now())
        self.nudge()
        return api.LetterSettled(id=params.id, state="pending")

    async def channel_drop(self, call: Call, params: api.OfLetter) -> api.LetterSettled:
        if (found := await self._unread(params)) is not None:
            await self.events.drop_unread(found)
        else:
            await self.letters.drop(params.id)
        return api.LetterSettled(id=params.id, state="dropped")

    async def _unread(self, params: api.OfLetter) -> HeardMessage | None:
        """Of those that came in; None: it can only be one that went out. Raises Conflict."""
        found = await self.events.unread(params.channel, platform_id=params.id, limit=2)
        if len(found) > 1:
            raise Conflict(f"more than one channel has a message {params.id}: name the channel too")
        return found[0] if found else None


def held(tally: Mapping[tuple[str, Any], int], states: frozenset[str]) -> Counter[str]:
    """Deliveries in one of the states, by channel."""
    counts = Counter[str]()
    for (channel, state), count in tally.items():
        counts[channel] += count if state in states else 0
    return counts


def _unread(one: HeardMessage) -> api.UnreadMessage:
    text = one.detail[:LONGEST_TEXT]
    return build(api.UnreadMessage, one, id=one.platform_id, why=one.why or None, text=text)


def _letter(one: Delivery) -> api.DeadLetter:
    text, at = one.new.text[:LONGEST_TEXT], one.settled_at or one.due_at
    return build(api.DeadLetter, one.new, one, text=text, at=at)


@dataclass(frozen=True, slots=True)
class PairMethods:
    approvals: Approvals

    async def pair_list(self, call: Call, params: api.PairList) -> api.PairingList:
        found = await self.approvals.listed(channel=params.channel, limit=params.limit)
        return api.PairingList(pairings=[_paired(one) for one in found])

    async def pair_approve(self, call: Call, params: api.PairApprove) -> api.Paired:
        by = call.principal.name
        return _paired(await self.approvals.approve(params.code, by=by, is_owner=params.owner))

    async def pair_deny(self, call: Call, params: api.PairDeny) -> api.Paired | api.PairingRevoked:
        by = call.principal.name
        if params.code is not None and params.channel is None and params.person is None:
            return _paired(await self.approvals.deny(params.code, by=by))
        if params.code is not None or params.channel is None or params.person is None:
            raise InvalidParams("give either code, or channel and person")
        who = (params.channel, params.account, params.person)
        denied = await self.approvals.turn_away(*who, by=by)
        return (
            build(api.PairingRevoked, params, state="revoked")
            if denied is None
            else _paired(denied)
        )

    async def pair_block(self, call: Call, params: api.OfPerson) -> api.Paired:
        who = (params.channel, params.account, params.person)
        return _paired(await self.approvals.block(*who, by=call.principal.name))

    async def pair_unblock(self, call: Call, params: api.OfPerson) -> api.PairingRevoked:
        who = (params.channel, params.account, params.person)
        await self.approvals.unblock(*who, by=call.principal.name)
        return build(api.PairingRevoked, params, state="unblocked")

    async def pair_revoke(self, call: Call, params: api.OfPerson) -> api.PairingRevoked:
        who = (params.channel, params.account, params.person)
        await self.approvals.revoke(*who, by=call.principal.name)
        return build(api.PairingRevoked, params, state="revoked")


def _paired(one: Pairing) -> api.Paired:
    expires_at = one.expires_at if one.state == "asked" else None
    return build(api.Paired, one, owner=one.is_owner, expires_at=expires_at)
