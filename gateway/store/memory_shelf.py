"""What the store in memory holds, apart from the ports that change it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from anyio.lowlevel import checkpoint

from gateway.domain.audit import AuditEntry
from gateway.domain.budgets import Reservation, Scope, Tally, TokenRecord
from gateway.domain.channel_events import Heard
from gateway.domain.channels import ChannelMemo
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.inbox import JournalNote, NewDelivery, RunRecord
from gateway.domain.messages import Node, Standing
from gateway.domain.outbox import Delivery
from gateway.domain.pairing import Pairing
from gateway.domain.ports import PluginSpace
from gateway.domain.sessions import SessionRecord
from gateway.domain.settling import Settled, Told
from gateway.domain.subagents import Original
from gateway.store.pruning import Fork, Span, branches_off, kept_spans, outdated
from gateway.store.rows import Stamps


@dataclass(slots=True)
class Session:
    record: SessionRecord
    last_run: int = 0
    nodes: dict[NodeId, Node] = field(default_factory=dict)  # in the order they were appended
    summaries: dict[NodeId, NodeId] = field(
        default_factory=dict
    )  # the newest above a node, or itself

    def grow(self, nodes: Sequence[Node], parent: NodeId | None) -> None:
        """Each is the parent of the next."""
        for seq, node in enumerate(nodes, len(self.nodes) + 1):
            self.nodes[node.id] = replace(node, parent_id=parent, seq=seq)
            summary = self.summaries.get(parent) if parent else None
            if node.message.role == "summary":
                summary = node.id
            if summary is not None:
                self.summaries[node.id] = summary
            parent = node.id

    def put_label(self, node: NodeId, label: str | None) -> None:
        for other in tuple(self.nodes.values()):
            if label is not None and other.label == label:
                self.nodes[other.id] = replace(other, label=None)
        self.nodes[node] = replace(self.nodes[node], label=label)

    def forks(self) -> list[Fork]:
        grown: list[Fork] = []
        for node in self.nodes.values():
            parent = self.nodes[node.parent_id].seq if node.parent_id else None
            if parent is None or parent != node.seq - 1:
                grown.append((node.seq, parent))
        return grown

    def bring_back(self) -> None:
        """What HEAD, a label or a checkpoint is on is seen again, with the path to it."""
        for span in kept_spans(self.forks(), self._tips()).items():
            self._stand(span, "archived", "shown")

    def prune(self, most: int) -> None:
        """A tree of more than `most` nodes loses branches from sight."""
        forks = self.forks() if most else []
        if self.record.head is None or len(forks) < 2:
            return
        kept, head = kept_spans(forks, self._tips()), self.nodes[self.record.head].seq
        tree, branches = branches_off(forks, head, kept, len(self.nodes))

        def shown(spans: Sequence[Span]) -> int:
            held = (node.seq for node in self.nodes.values() if node.standing == "shown")
            return sum(any(first <= seq <= last for first, last in spans) for seq in held)

        for span in outdated(tree, branches, shown, most):
            self._stand(span, "shown", "archived")

    def _tips(self) -> list[int]:
        kept = {node.id for node in self.nodes.values() if node.label or node.is_checkpoint}
        return [node.seq for node in self.nodes.values() if node.id in {*kept, self.record.head}]

    def _stand(self, span: Span, was: Standing, now: Standing) -> None:
        for node in tuple(self.nodes.values()):
            if span[0] <= node.seq <= span[1] and node.standing == was:
                self.nodes[node.id] = replace(node, standing=now)


@dataclass(slots=True)
class Run:
    record: RunRecord
    swept: bool = False


@dataclass(slots=True)
class Space:
    """What a plugin keeps in one of its spaces, and how many bytes that is."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class Posted:
    """A notice for other sessions; `until` in microseconds."""

    person: str
    session_key: SessionKey  # that posted it
    until: int | None
    packed: str
    claimed_by: RunId | None = None


@dataclass(slots=True)
class Topic:
    """All that was claimed of a subject and predicate in a scope, and what is believed of it."""

    told: list[Told] = field(default_factory=list)
    facts: dict[str, Settled] = field(default_factory=dict)  # by id


@dataclass(slots=True)
class Shelf:
    """All there is; every change happens between two awaits, so it is whole or not at all."""

    sessions: dict[SessionKey, Session] = field(default_factory=dict)
    runs: dict[RunId, Run] = field(default_factory=dict)
    open_runs: dict[RunId, None] = field(default_factory=dict)
    seen: dict[tuple[str, str, str], RunId] = field(default_factory=dict)
    node_ids: set[NodeId] = field(default_factory=set)
    journal: dict[RunId, list[JournalNote]] = field(default_factory=dict)
    tapes: dict[RunId, bytes] = field(default_factory=dict)
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    last_delivery: int = 0
    spaces: dict[PluginSpace, Space] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    rule_states: dict[SessionKey, str] = field(default_factory=dict)
    posted: list[Posted] = field(default_factory=list)
    tallies: dict[Scope, Tally] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    records: list[TokenRecord] = field(default_factory=list)
    last_day: str = ""
    audit: list[AuditEntry] = field(default_factory=list)
    topics: dict[tuple[str, str, str], Topic] = field(default_factory=dict)
    forgotten: dict[tuple[str, str], datetime] = field(default_factory=dict)  # until then
    heard: dict[SessionKey, int] = field(default_factory=dict)  # how many nodes
    unread: dict[SessionKey, tuple[int, bool]] = field(default_factory=dict)
    memos: dict[tuple[str, str, str], ChannelMemo] = field(default_factory=dict)
    told: dict[tuple[str, str, str], Heard] = field(default_factory=dict)  # by name as in `seen`
    originals: dict[str, Original] = field(default_factory=dict)  # by reference
    pairings: dict[tuple[str, str, str], Pairing] = field(default_factory=dict)  # by who it is
    stamps: Stamps = field(default_factory=Stamps)
    is_closed: bool = False

    def is_forgotten(self, names: Iterable[tuple[str, str]], said_at: datetime) -> bool:
        known = ((name[0], self.forgotten.get(name)) for name in names)
        return any(upto and (kind == "message" or said_at <= upto) for kind, upto in known)

    def forget_originals(self, key: SessionKey) -> None:
        kept = self.originals.items()
        self.originals = {name: one for name, one in kept if one.session_key != key}

    def add_delivery(
        self, new: NewDelivery, due: datetime, run: tuple[RunId, SessionKey] | None = None
    ) -> None:
        """`run` that it answers, with its session; None: no turn made it."""
        self.last_delivery += 1
        run_id, key = run or (None, None)
        made = Delivery(new, run_id, key, "pending", 0, due, place=self.last_delivery)
        self.deliveries[new.id] = made

    def keep_memos(self, memos: Iterable[ChannelMemo]) -> None:
        self.memos.update({(memo.channel, memo.account, memo.slot): memo for memo in memos})

    async def ready(self) -> None:
        await checkpoint()
        self.require_open()

    def require_open(self) -> None:
        if self.is_closed:
            raise StoreUnavailable("the store is closed")
