"""audit.*, backup.*, channel.*, cluster.*, logs.*, pair.*: the methods of operators."""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from anyio import to_thread
from pydantic_core import from_json

from gateway.api import operating as api
from gateway.api.declarations import Params, build
from gateway.api.errors import InvalidParams
from gateway.codec import decode
from gateway.domain.backups import Backup
from gateway.domain.channels import Approvals, ChannelStatus, Pairing
from gateway.domain.cluster import ClusterOverview, Member
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.events import AuditEntry
from gateway.domain.ids import RunId
from gateway.domain.inbox import Delivery, ReceivedMessage
from gateway.domain.logs import Line, LogFilter, describe_run, merge_lines
from gateway.domain.ports import Audit, ChannelStore, Clock, Inbox, Outbox
from gateway.domain.text import moment_ago
from gateway.web.rpc import Call

LONGEST_TEXT = 4_000  # characters shown of a dead letter
WAITING = frozenset({"pending", "sending"})
DEAD = frozenset({"unknown", "failed"})


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
        """Reads the whole audit in parts. `head` is a hash that was shown earlier: a chain whose end was cut off is
        valid, but lacks that hash."""
        last: AuditEntry | None = None
        is_known = params.head is None
        while entries := await self.audit.after(last.seq if last else 0, limit=self.at_once):
            for entry in entries:
                if not entry.follows(last):
                    return _verdict(last, f"entry {entry.seq} does not follow the entry before it")
                last, is_known = entry, is_known or entry.hash == params.head
        return _verdict(last, None if is_known else "no entry has that hash: the end is missing")


def _verdict(last: AuditEntry | None, why: str | None) -> api.AuditVerdict:
    entries, head = (last.seq, last.hash) if last else (0, None)
    return api.AuditVerdict(ok=why is None, entries=entries, head=head, why=why)


@dataclass(frozen=True, slots=True)
class LogMethods:
    read: Callable[[LogFilter], Iterable[Line]]  # from the log files
    inbox: Inbox
    clock: Clock

    async def logs_tail(self, call: Call, params: api.TailLogs) -> api.LogPage:
        try:
            since = moment_ago(params.since, self.clock.now()) if params.since else None
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        about = (params.run, params.session, params.channel, params.event)
        wanted, most = LogFilter(since, params.level, *about), params.limit

        def newest() -> deque[Line]:
            return deque(self.read(wanted), most + 1)

        lines = await to_thread.run_sync(newest)
        if params.run is not None:
            with suppress(NotFound):
                history = describe_run(await self.inbox.run_history(RunId(params.run)), decode)
                lines = deque(merge_lines(lines, filter(wanted.fits, history)), most + 1)
        shown: list[object] = [*lines]
        return api.LogPage(lines=shown[-most:], more=len(shown) > most)


@dataclass(frozen=True, slots=True)
class ClusterMethods:
    overview: Callable[[], Awaitable[ClusterOverview]] | None  # None if there is no cluster
    clock: Clock

    async def cluster_status(self, call: Call, params: Params) -> api.ClusterStatus:
        if self.overview is None:
            return api.ClusterStatus(nodes=[], partitions=[], lag_s=0.0, degraded=[])
        now, found = self.clock.now(), await self.overview()
        owned, pending = Counter(one.node for one in found.state.leases), found.pending.get
        return api.ClusterStatus(
            nodes=[_node(one, owned) for one in found.state.members],
            partitions=[
                build(api.PartitionState, one.lease, one, pending=pending(one.lease.partition, 0))
                for one in found.state.leases
            ],
            lag_s=round(found.lag_s(now), 3),
            degraded=list(found.degraded),
        )


def _node(one: Member, owned: Mapping[str | None, int]) -> api.ClusterNodeState:
    who, count = one.presence, owned[one.presence.node]
    return build(api.ClusterNodeState, who, one, partitions=count, ready=who.is_ready)


@dataclass(frozen=True, slots=True)
class ChannelMethods:
    statuses: Callable[[], Sequence[ChannelStatus]]
    letters: Outbox
    events: ChannelStore
    nudge: Callable[[], None]  # starts pending deliveries
    clock: Clock
    retry_message: Callable[[ReceivedMessage], Awaitable[None]]  # raises Conflict

    async def channel_list(self, call: Call, params: Params) -> api.ChannelList:
        tally = await self.letters.tally()
        unread = await self.events.count_unread()
        pending, dead = count_deliveries(tally, WAITING), count_deliveries(tally, DEAD)
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
        outgoing = count_deliveries(await self.letters.tally(), DEAD)
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
            await self.retry_message(found)
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

    async def _unread(self, params: api.OfLetter) -> ReceivedMessage | None:
        """Finds an incoming message; None if the id can only be that of a delivery. Raises Conflict."""
        found = await self.events.unread(params.channel, platform_id=params.id, limit=2)
        if len(found) > 1:
            raise Conflict(f"several channels have a message {params.id}: name the channel too")
        return found[0] if found else None


def count_deliveries(tally: Mapping[tuple[str, Any], int], states: frozenset[str]) -> Counter[str]:
    """Counts the deliveries in any of the states, by channel."""
    counts = Counter[str]()
    for (channel, state), count in tally.items():
        counts[channel] += count if state in states else 0
    return counts


def _unread(one: ReceivedMessage) -> api.UnreadMessage:
    text = one.detail[:LONGEST_TEXT]
    return build(api.UnreadMessage, one, id=one.platform_id, why=one.why or None, text=text)


def _letter(one: Delivery) -> api.DeadLetter:
    text, at = one.new.text[:LONGEST_TEXT], one.settled_at or one.due_at
    return build(api.DeadLetter, one.new, one, text=text, at=at)


@dataclass(frozen=True, slots=True)
class PairMethods:
    approvals: Approvals

    async def pair_list(self, call: Call, params: api.PairList) -> api.PairingList:
        found = await self.approvals.list_pairings(channel=params.channel, limit=params.limit)
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
        revoked = build(api.PairingRevoked, params, state="revoked")
        return revoked if denied is None else _paired(denied)

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


class BackupFunction(Protocol):
    async def __call__(self, path: Path | None, *, with_secrets: bool, by: str) -> Backup: ...


@dataclass(frozen=True, slots=True)
class BackupMethods:
    create: BackupFunction

    async def backup_create(self, call: Call, params: api.CreateBackup) -> api.BackupCreated:
        path = Path(params.file) if params.file else None
        by = call.principal.name
        made = await self.create(path, with_secrets=params.with_secrets, by=by)
        return build(api.BackupCreated, made, made.manifest, made.manifest.store)
