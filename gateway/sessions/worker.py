"""The work of a lane: prepare a run, drive the agent, commit the end of the run, publish it."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import ceil
from operator import attrgetter
from weakref import ref

import anyio

from gateway.agent.driver import Assignment, Driver, RunJournal, Runner
from gateway.agent.effects import Fail, Moment, RunResult
from gateway.agent.limits import CONTEXT, plain_limits
from gateway.codec import decode, encode
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import AgentDef, ContextRules, person_key
from gateway.domain.errors import GatewayError, NotFound
from gateway.domain.events import Event
from gateway.domain.facts import Recalled, SaidMessage, SaidSource
from gateway.domain.figures import BOUND, RunTrace
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey, TraceContext
from gateway.domain.inbox import Ending, EndState, Merged, NewDelivery, NewEntry
from gateway.domain.journal import grants_of, pack_text
from gateway.domain.messages import Chunk, ErrorType, Message, Node, NodeStatus
from gateway.domain.ports import Clock, Inbox, Journal, SessionStore, ToolScope
from gateway.domain.sessions import RECORD_BYTES, SettingsRefused, UserSettings, with_settings
from gateway.domain.supervision import result_of, retry_store
from gateway.memory.context import ContextExtras, Episode, Episodes, message_tokens
from gateway.memory.extraction import FactExtractor
from gateway.memory.recall import Recall, Vault
from gateway.memory.souls import Souls
from gateway.sessions.journal import RecordedJournal, RunInputs
from gateway.sessions.lanes import TurnBatch
from gateway.sessions.runs import LiveRun, LiveRuns

log = logging.getLogger(__name__)

SHOWN_TEXT = 150_000  # characters of the answer in the last event; earlier chunks had all of it
MOST_ATTEMPTS = 3
LAST_WORDS_S = 1.0
DEFECT = "Something went wrong inside the gateway; the operator finds it in the log."
_RUN_ID = attrgetter("run_id")

# -- how a run ends


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run: its result, the nodes to keep, and the last chunk. `outcome` is the reason of
    `done`, or `failed`."""

    result: RunResult
    nodes: tuple[Node, ...]
    terminal: Chunk
    outcome: str
    state: EndState = "done"


def end_with(batch: TurnBatch, parent: NodeId | None, result: RunResult, moment: Moment) -> RunEnd:
    """Makes the end of a run from the result of its turn."""
    end = result.end
    status: NodeStatus = "complete"
    if isinstance(end, Fail):
        status = "error" if end.text == end.message else "partial"
    elif end.partial:
        status = "cancelled" if end.reason == "cancelled" else "partial"
    nodes = _nodes(batch, parent, result, moment.wall, status)
    last = nodes[-1].id
    if isinstance(end, Fail):
        return RunEnd(result, nodes, _error(end, last, moment.wall), "failed")
    done: dict[str, object] = {
        "reason": end.reason,
        "message_id": last,
        "context_id": last,
        "response": end.text[:SHOWN_TEXT],
    }
    if len(end.text) > SHOWN_TEXT:
        done["truncated"] = True
    if result.finish in {"length", "overrun"}:
        done["cut"] = True
    if result.finish == "content_filter":
        done["filtered"] = True
    done["tokens_used"] = result.usage.total
    done["model"] = result.model
    done["execution_time_ms"] = ceil((moment.at - batch.run.began) * 1000)
    done["partial"] = end.partial
    done["timestamp"] = moment.wall
    return RunEnd(result, nodes, Chunk("done", done), end.reason)


def _nodes(
    batch: TurnBatch, parent: NodeId | None, result: RunResult, at: datetime, status: NodeStatus
) -> tuple[Node, ...]:
    """Returns the questions and the messages after them, each the parent of the next. A question keeps
    the id of its message and its own run. `status` is the status of the last node."""
    nodes, carrier, took = list[Node](), batch.run.new, iter(batch.took)
    for one in (*batch.earlier, batch.run):
        new, asked = one.new, one.question
        node_id, tokens = NodeId(new.message_id), message_tokens(asked)
        nodes.append(Node(node_id, parent, new.run_id, asked, new.accepted_at, tokens))
        parent = node_id
    for place, message in enumerate(result.said, 1):
        taken = next(took, None) if message.role == "user" else None
        new = taken.new if taken else carrier
        node = Node(
            id=NodeId(new.message_id if taken else f"{new.message_id}.{place}"),
            parent_id=parent,
            run_id=new.run_id,
            message=message,
            created_at=new.accepted_at if taken else at,
            token_count=message_tokens(message),
            status=status if place == len(result.said) else "complete",
            model=(result.model or None) if message.role == "assistant" else None,
        )
        nodes.append(node)
        parent = node.id
    return tuple(nodes)


def refused_end(
    batch: TurnBatch, parent: NodeId | None, error_type: ErrorType, text: str, moment: Moment
) -> RunEnd:
    """Makes the end of a run that asked no model, or that a defect of the gateway broke off."""
    at, run = moment.wall, batch.run
    facts = {"reason": error_type, "exchange_saved": True, "cancelled": False, "partial": True}
    event = Event("session.end", "info", "sessions", at, run.session_key, run.run_id, facts)
    said, end = (Message("assistant", text),), Fail(text, text, error_type)
    return end_with(batch, parent, RunResult(end, said, end_event=event), moment)


def merged_chunk(into: RunId, answer: NodeId, at: datetime) -> Chunk:
    """Makes the last chunk of a run whose question another run answered."""
    data = {
        "reason": "merged",
        "merged_into": into,
        "message_id": answer,
        "context_id": answer,
        "response": "",  # the other run sent it
        "tokens_used": 0,
        "model": None,
        "execution_time_ms": 0,
        "partial": False,
        "timestamp": at,
    }
    return Chunk("done", data)


def trace_of(run: LiveRun, end: RunEnd, journal: RunJournal) -> RunTrace:
    """Returns the times and costs of a run. If the end belongs to another run, this one was merged."""
    result, reason, calls, store_s = end.result, end.outcome, journal.calls, journal.store_s
    if isinstance(result.end, Fail):
        reason = result.end.error_type
    if end.nodes[-1].run_id != run.run_id:
        result, reason, calls, store_s = RunResult(result.end, ()), "merged", [], 0.0
    return RunTrace(
        run.run_id,
        run.session_key,
        run.person,
        reason,
        result.usage,
        result.iterations,
        calls,
        run.opened or run.began,
        run.began,
        journal.tick(),
        journal.clock.now(),
        store_s,
        run.trace,
    )


def _error(end: Fail, node_id: NodeId, at: datetime) -> Chunk:
    refusal = end.refusal  # set if a budget refused the call
    known = {
        "provider": end.provider,
        "provider_status": end.status,
        "retry_after_s": refusal.retry_after_s if refusal else end.retry_after_s,
    }
    data = {
        "error_type": end.error_type,
        "message": end.message,
        "retryable": end.retryable,
        "context_id": node_id,
        "timestamp": at,
        **(refusal.facts if refusal else {}),
        **{name: value for name, value in known.items() if value is not None},
    }
    return Chunk("error", data)


# -- the settings of users

MOST_KNOWN = 4096  # users in memory


@dataclass(slots=True)
class SettingsBook:
    """The settings of users. A user is a principal's name, or `channel:account:sender` with its parts
    encoded."""

    store: SessionStore
    known: dict[str, UserSettings] = field(default_factory=dict)

    async def of(self, user: str) -> UserSettings:
        """Returns the settings of a user. Raises StoreUnavailable."""
        known = self.known.get(user)
        if known is not None:
            return known
        read = await self.store.read_settings(user)
        # A change that was made during the read is newer.
        return self.known.get(user) or self._remember(user, self._parse(read))

    async def change(self, user: str, patch: Mapping[str, object]) -> UserSettings:
        """Changes settings. A run at work keeps the old ones.

        Raises SettingsRefused if the record would be too large, and StoreUnavailable.
        """
        while True:
            before = await self.store.read_settings(user)
            after = self._parse(before).patched(patch)
            record = encode(after.kept)
            if len(record) > RECORD_BYTES:
                raise SettingsRefused(RECORD_BYTES)
            with anyio.CancelScope(shield=True):  # a caller that goes away does not stop the write
                self.known.pop(user, None)
                if await self.store.write_settings(user, record.decode(), expected=before):
                    return self._remember(user, after)

    def _parse(self, record: str | None) -> UserSettings:
        kept = {} if record is None else decode(record)
        assert isinstance(kept, dict)
        return UserSettings(kept)

    def _remember(self, user: str, settings: UserSettings) -> UserSettings:
        self.known[user] = settings
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]
        return settings


# -- the work

LONGEST_S = 0.5
TOO_SLOW = f"nothing was looked up: it took longer than {LONGEST_S:g} s"
FAILED = "nothing was looked up: the search failed; the log has the reason"
SWITCHED_OFF = "switched off by context.semantic"

Found = tuple[tuple[Recalled, ...], str]  # the text says why nothing was looked up


@dataclass(slots=True)
class TurnCount:
    """The number of running turns of one worker, which a reload may replace while they run."""

    at_work: int = 0


@dataclass(frozen=True, slots=True)
class RunWorker:
    """Runs accepted messages. Each gets exactly one end."""

    agents: Mapping[AgentId, AgentDef]
    runner: Runner
    inbox: Inbox
    journal: Journal
    episodes: Episodes
    souls: Souls
    settings: SettingsBook
    clock: Clock
    bus: Bus
    runs: LiveRuns = field(default_factory=dict)
    memory: Recall | None = None
    vaults: Mapping[AgentId, Vault] = field(default_factory=dict)  # for agents that read notes
    compact: Callable[[SessionKey, AgentDef, RunId], None] = lambda key, agent, run_id: None
    channels: frozenset[str] = frozenset()  # their answers leave through the outbox
    extractor: FactExtractor | None = None  # None: no facts are extracted
    on_finished: Callable[[SessionKey], None] = lambda key: None  # called after a turn's commit
    report: Callable[[RunTrace], None] = lambda trace: None  # called for every ended run
    trace: Callable[[str | None], TraceContext | None] = lambda traceparent: None
    turns: TurnCount = field(default_factory=TurnCount)

    async def work(self, batch: TurnBatch) -> None:
        """Runs one turn. Merged messages end together with the run that carries them. Only a
        cancellation leaves this function, and then all messages are still in the inbox."""
        run, key = batch.run, batch.run.session_key
        BOUND.set(ref(run))
        self.turns.at_work += 1
        try:
            if self.extractor is not None:
                await self.extractor.settled(key)
            journal = await self._begin(batch)
            try:
                end = await self._finish(batch, journal)
            except anyio.get_cancelled_exc_class():
                # An attempt that the gateway cancels does not count against the message.
                with (
                    anyio.move_on_after(LAST_WORDS_S, shield=True),
                    contextlib.suppress(GatewayError),
                ):
                    await self.journal.forgive(run.run_id)
                raise
            finally:
                run.release()
        finally:
            self.turns.at_work -= 1
        for ended in (*batch.earlier, *batch.took, run):
            self.runs.pop(ended.run_id, None)
            ended.publish()
            self.report(trace_of(ended, end, journal))
        journal.calls = []  # their requests refer to the journal; without the cycle it is freed at once
        if self.extractor is not None:
            said = list[SaidMessage]()
            for one in (*batch.earlier, run, *batch.took):
                new, at = one.new, one.new.accepted_at
                node_id = NodeId(new.message_id)
                said.append(SaidMessage(node_id, one.run_id, new.sender, new.content, at))
            self.extractor.extract(key, said, end.nodes[-1].id)
        event = end.result.end_event
        if event is not None and self.bus.has_listener(event.type):
            self.bus.publish(event)
        if batch.crowded is not None:
            self.compact(key, batch.crowded, run.run_id)

    async def _begin(self, batch: TurnBatch) -> RecordedJournal:
        """Counts the attempt, and reads the grants of earlier attempts."""
        run = batch.run
        attempt = run.entry.attempts
        if run.entry.state == "queued":
            attempt = await retry_store(self.clock, self.inbox.begin, run.run_id)
        parts: Sequence[bytes] = ()
        if attempt > 1:
            parts = await retry_store(self.clock, self.journal.read, run.run_id)
        granted = grants_of(parts, decode) if parts else ()
        store = (self.clock, self.journal)
        journal = RecordedJournal(run.run_id, *store, granted=granted, parts=len(parts))
        journal("attempt", attempt, [*map(_RUN_ID, batch.earlier), run.run_id])
        run.start(attempt, journal.moment(), journal)
        return journal

    async def _finish(self, batch: TurnBatch, journal: RecordedJournal) -> RunEnd:
        """Drives the run to its end and commits it."""
        run, facts = batch.run, {"run": batch.run.run_id}
        agent = self.agents.get(run.session_key.agent)
        unread, unstored = "session_unreadable", "answer_not_stored"
        at = journal.tick()
        episode = await result_of(unread, facts, self._episode, batch, agent)
        journal.store_s += journal.tick() - at
        if episode is None:
            episode = Episode(None)
            end = refused_end(batch, None, "internal_error", DEFECT, journal.moment())
        else:
            end = await self.end_of(batch, agent, episode, journal)
        at = journal.tick()
        if not await result_of(unstored, facts, self._commit, batch, episode, end, journal):
            # The store refuses something in the answer. The question is kept, with an apology.
            run.progress = dict
            for sealed in (run, *batch.earlier, *batch.took):
                sealed.unseal()
            batch.took = ()
            state = end.state
            end = refused_end(batch, episode.head, "internal_error", DEFECT, journal.moment())
            end = replace(end, state=state)
            await self._commit(batch, episode, end, journal)
        journal.store_s += journal.tick() - at
        return end

    async def _episode(self, batch: TurnBatch, agent: AgentDef | None) -> Episode:
        key, upto = batch.run.session_key, batch.run.new.context_id
        if batch.run.entry.seq == 1 and upto is None:
            return Episode(None, is_all=True)  # the first message has no history
        rules = agent.context if agent else ContextRules()
        episode = await retry_store(self.clock, self.episodes.recall, key, rules)
        if upto is None or episode.is_summed_up_after(upto):
            return episode
        try:
            return await retry_store(self.clock, self.episodes.recall, key, rules, upto=upto)
        except NotFound:
            log.warning("context_gone", extra={"node": upto})
            return episode

    async def end_of(
        self,
        batch: TurnBatch,
        agent: AgentDef | None,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None = None,
    ) -> RunEnd:
        """Drives the run after `episode` and returns its end. `read` is set for a replay: the inputs of
        the recorded run."""
        run, parent = batch.run, episode.head
        if run.attempt - run.entry.forgiven > MOST_ATTEMPTS:
            text = f"This message was set aside: the gateway stopped {MOST_ATTEMPTS} times over it."
            end = refused_end(batch, parent, "internal_error", text, journal.moment())
            return replace(end, state="dead")
        if agent is None:
            text = f"The agent {run.session_key.agent!r} is no longer configured."
            return refused_end(batch, parent, "config_error", text, journal.moment())
        facts, drive = {"run": run.run_id}, self._drive
        result = await result_of("run_failed", facts, drive, batch, agent, episode, journal, read)
        if result is None:
            return refused_end(batch, parent, "internal_error", DEFECT, journal.moment())
        if result.taken:
            behind = {one.run_id: one for one in batch.behind}
            batch.took = [behind[taken] for taken in result.taken if taken in behind]
        return end_with(batch, parent, result, journal.moment())

    async def _drive(
        self,
        batch: TurnBatch,
        agent: AgentDef,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None,
    ) -> RunResult:
        run, runner, rules = batch.run, self.runner, self.runner.rules
        settings = self.settings.known.get(run.person)
        if settings is None:
            settings = await retry_store(self.clock, self.settings.of, run.person)
        if batch.model is not None:
            settings = settings.patched({"oracle_model": batch.model})
        if settings.kept or run.new.limits:
            agent = with_settings(agent, settings, run.new.limits)
        found = read or await self._read(batch, agent, episode, rules)
        batch.has_claimed = bool(found.notices)
        job = runner.job(self._assignment(batch, agent, episode, found), journal)
        if job.context.tokens >= job.near_at and await self._was_near(episode):
            job = replace(job, was_near=True)
        batch.most_nodes = agent.context.max_nodes
        batch.crowded = agent if job.context.is_crowded else None
        driver = Driver(job, runner.model, runner.gate, journal, run.emit, control=run.control)
        run.progress = driver.progress
        scene = {
            "limits": plain_limits(agent.limits),
            "tree": {"name": agent.tree, "text": job.plan_digest},
            "decision": job.agent.decision,
            "rules": dict(rules.digests),
        }
        if read is None:
            journal("begin", scene, found.plain())
        else:
            await journal.compare(job, scene)
        try:
            return await driver.drive()
        finally:
            journal("over")

    def _assignment(
        self, batch: TurnBatch, agent: AgentDef, episode: Episode, read: RunInputs
    ) -> Assignment:
        new, key, earlier = batch.run.new, batch.run.session_key, batch.earlier
        said_by = new.sender or key.peer
        source = SaidSource(new.message_id, key, new.accepted_at, new.content, said_by)
        extras = ContextExtras(
            summary=episode.summary,
            recalled=read.recalled,
            missing=read.missing,
            earlier=[one.question for one in earlier] if earlier else (),
            question_id=new.message_id,
            template=self.souls.templates.get(agent.id),
        )
        return Assignment(
            agent,
            batch.run.question,
            ToolScope(key, new.run_id, batch.run.person, asked=source, trace=batch.run.trace),
            soul=self.souls.by_agent.get(agent.id),
            earlier=episode.nodes,
            extras=extras,
            notices=read.notices,
            lacking=read.lacking,
            kept=read.kept,
            context_id=new.context_id,
        )

    async def _read(
        self, batch: TurnBatch, agent: AgentDef, episode: Episode, rules: RuleSet
    ) -> RunInputs:
        """Reads the inputs of the run besides the conversation."""
        run, key, clock, journal = batch.run, batch.run.session_key, self.clock, self.journal
        notices = await retry_store(
            clock, journal.claim_notices, run.person, key, run.run_id, now=clock.now()
        )
        lacking = await self.runner.lacking(agent, run.control)
        vault = self.vaults.get(agent.id)
        recalled, missing = await recall(run.new, agent, episode, self.memory, vault)
        state: object = None
        if rules.keeps_state:
            text = await retry_store(clock, journal.rule_state, key)
            state = decode(text) if text else None
        kept = state if isinstance(state, dict) else {}
        return RunInputs(tuple(notices), kept, recalled, missing, tuple(lacking))

    async def _was_near(self, episode: Episode) -> bool:
        """True if the previous run nearly filled the context window."""
        if not episode.nodes:
            return False
        before = episode.nodes[-1].run_id
        record = await retry_store(self.clock, self.inbox.find_run, before)
        summary = decode(record.summary) if record and record.summary else {}
        return isinstance(summary, dict) and CONTEXT in summary.get("warned", ())

    async def _commit(
        self, batch: TurnBatch, episode: Episode, end: RunEnd, journal: RecordedJournal
    ) -> bool:
        """Commits the end of the run and of the runs that are merged into it. Returns True."""
        run, new, key, result = batch.run, batch.run.new, batch.run.session_key, end.result
        run.seal(end.terminal)
        summary = {**run.summary(self.clock), "termination_reason": end.outcome}
        part, pack = await journal.last_part()
        deliveries: tuple[NewDelivery, ...] = ()
        # An answer for a removed channel stays in the outbox, for the operator.
        if key.channel in self.channels or new.whence is not None:
            place = (key.channel, key.account, *new.destination)
            name, text = f"d_{new.message_id}", result.end.text
            deliveries = (NewDelivery(name, *place, text, new.whence),)
        ending = Ending(
            run_id=new.run_id,
            session_key=key,
            state=end.state,
            outcome=end.outcome,
            nodes=end.nodes,
            grown_from=episode.head,
            take_head=new.context_id is not None and episode.head is not None,
            journal=pack,
            part=part,
            summary=encode(summary).decode(),
            finished_at=self.clock.now(),
            deliveries=deliveries,
            person=run.person,
            posts=result.posts,
            has_claimed=batch.has_claimed,
            leaves_claimed=not result.has_read_notices,
            rule_state=None if result.kept is None else encode(dict(result.kept)).decode(),
            merged=self._merged(batch, end) if batch.earlier or batch.took else (),
            most_nodes=batch.most_nodes,
        )
        moved = await retry_store(self.clock, self.inbox.finish, ending)
        self.on_finished(key)
        agent = self.agents.get(key.agent)
        if moved and agent is not None:
            self.episodes.append(key, episode, end.nodes, agent.context)
        else:
            self.episodes.forget(key)
        return True

    def _merged(self, batch: TurnBatch, end: RunEnd) -> tuple[Merged, ...]:
        """Ends the other runs of the batch."""
        into, found = batch.run.run_id, list[Merged]()
        for one in (*batch.earlier, *batch.took):
            moment = Moment(self.clock.now(), self.clock.monotonic())
            one.start(max(1, one.entry.attempts), moment)
            one.seal(merged_chunk(into, end.nodes[-1].id, moment.wall))
            facts = {"termination_reason": "merged", "merged_into": into}
            summary = encode({**one.summary(self.clock), **facts}).decode()
            found.append(Merged(one.run_id, pack_text(one.events), summary))
        return tuple(found)


async def recall(
    new: NewEntry, agent: AgentDef, episode: Episode, memory: Recall | None, vault: Vault | None
) -> Found:
    """Finds facts, turns and notes for the question. A failure does not end the run."""
    facts, listed = {"run": new.run_id}, await _listed(vault, new) if vault else ()
    if memory is None or not agent.context.semantic:
        return listed, SWITCHED_OFF if memory else ""
    look = partial(memory.for_turn, new.content, new.session_key, new.sender, agent, episode)
    with anyio.move_on_after(LONGEST_S):
        found = await result_of("recall_failed", facts, look)
        return (listed, FAILED) if found is None else ((*listed, *found), "")
    log.warning("recall_timeout", extra=facts)
    return listed, TOO_SLOW


async def _listed(vault: Vault, new: NewEntry) -> tuple[Recalled, ...]:
    key, facts = new.session_key, {"run": new.run_id}
    about = (person_key(key, new.sender), key, new.accepted_at)
    with anyio.move_on_after(LONGEST_S):
        return await result_of("notes_unlisted", facts, vault.named, *about) or ()
    return ()
