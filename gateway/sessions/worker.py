"""What a lane does with a message: prepare, drive the agent, end the run in one commit, tell the end."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import anyio

from gateway.agent.driver import Assignment, Runner
from gateway.agent.effects import End, Fail, Finish, Moment, RunResult
from gateway.agent.journal import RunJournal, retry_store
from gateway.agent.limits import CONTEXT, context_line, plain_limits
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import AgentDef, ContextRules, person_key
from gateway.domain.errors import GatewayError, NotFound
from gateway.domain.events import Event
from gateway.domain.facts import Recalled, Remember, SaidMessage, SaidSource
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Ending, Merged, NewDelivery, NewEntry
from gateway.domain.journal import pack_text
from gateway.domain.messages import Chunk, ErrorType, Message, Node, NodeStatus, Usage
from gateway.domain.ports import Clock, Decode, Encode, Inbox, Journal, ToolScope
from gateway.domain.sessions import as_wished
from gateway.domain.supervision import result_of
from gateway.memory.context import Besides
from gateway.memory.episodes import Episode, Episodes
from gateway.memory.extraction import FactExtractor
from gateway.memory.recall import Vault
from gateway.memory.souls import Souls
from gateway.memory.window import message_tokens
from gateway.sessions.journal import NO_ATTEMPTS, RunInputs, earlier_attempts
from gateway.sessions.lanes import MOST_ATTEMPTS, QueuedMessage, TurnBatch
from gateway.sessions.runs import LiveRun, LiveRuns, RecordedJournal, Timing
from gateway.sessions.settings import SettingsBook

log = logging.getLogger(__name__)

SHOWN_TEXT = 150_000  # characters in the last event; all of it was sent before, in pieces
LAST_WORDS_S = 1.0
DEFECT = "Something went wrong inside the gateway; the operator finds it in the log."

# -- how a run ends


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ends. `outcome` is the reason of `done`, or `failed`; `result` is what the agent
    came to, if it was asked; `event` is published once the end is durable."""

    outcome: str
    nodes: tuple[Node, ...]
    terminal: Chunk
    text: str
    event: Event | None = None
    result: RunResult | None = None

    @property
    def usage(self) -> Usage:
        return self.result.usage if self.result else Usage()


@dataclass(frozen=True, slots=True)
class TurnMessages:
    """The messages that a run answers, its own the last, and those that it `took` on its way; all
    grow from `parent`."""

    asked: Sequence[NewEntry]
    parent: NodeId | None
    took: Sequence[NewEntry] = ()

    def answered(self, result: RunResult, timing: Timing) -> RunEnd:
        """The end of a run that was driven, whether it was answered, stopped or broken off."""
        end, status = result.end, _status(result.end)
        nodes = self._nodes(result.said, timing, status, result.model)
        last = nodes[-1].id
        if isinstance(end, Finish):
            done = _done(end, result, last, timing)
            return RunEnd(end.reason, nodes, done, end.text, result.farewell, result)
        error = _error(end, last, timing)
        return RunEnd("failed", nodes, error, end.text, result.farewell, result)

    def refused(self, error_type: ErrorType, told: str, timing: Timing) -> RunEnd:
        """The end of a run that no model was asked for, or that a defect of ours broke off."""
        nodes = self._nodes((Message("assistant", told),), timing, "error", None)
        terminal = _error(Fail(told, told, error_type), nodes[-1].id, timing)
        facts = {"reason": error_type, "exchange_saved": True, "cancelled": False, "partial": True}
        new, at = self.asked[-1], timing.finished_at
        event = Event("session.end", "info", "sessions", at, new.session_key, new.run_id, facts)
        return RunEnd("failed", nodes, terminal, told, event)

    def _nodes(
        self, said: Sequence[Message], timing: Timing, status: NodeStatus, model: str | None
    ) -> tuple[Node, ...]:
        """The questions and all that was said after them, each the parent of the next. A question
        keeps the id of its message and the run that it was accepted with. `status` is that of the
        last."""
        own, took, parent = self.asked[-1], iter(self.took), self.parent
        placed: list[tuple[NewEntry | None, Message]]
        placed = [(new, Message("user", new.content)) for new in self.asked]
        placed += [(next(took, None) if one.role == "user" else None, one) for one in said]
        nodes: list[Node] = []
        for place, (new, message) in enumerate(placed, 1 - len(self.asked)):
            node = Node(
                id=NodeId(new.message_id if new else f"{own.message_id}.{place}"),
                parent_id=parent,
                run_id=(new or own).run_id,
                message=message,
                created_at=new.accepted_at if new else timing.finished_at,
                token_count=message_tokens(message),
                status=status if place == len(said) else "complete",
                model=model if message.role == "assistant" else None,
            )
            nodes.append(node)
            parent = node.id
        return tuple(nodes)


def _status(end: End) -> NodeStatus:
    """The status of the last message."""
    if not isinstance(end, Finish):
        return "error" if end.text == end.told else "partial"
    if not end.partial:
        return "complete"
    return "cancelled" if end.reason == "cancelled" else "partial"


def _done(end: Finish, result: RunResult, node_id: NodeId, timing: Timing) -> Chunk:
    marks = {
        "truncated": len(end.text) > SHOWN_TEXT,
        "cut": result.finish in {"length", "overrun"},
        "filtered": result.finish == "content_filter",
    }
    data = {
        "reason": end.reason,
        "message_id": node_id,
        "context_id": node_id,
        "response": end.text[:SHOWN_TEXT],
        **{name: True for name, holds in marks.items() if holds},
        "tokens_used": result.usage.total,
        "model": result.model,
        "execution_time_ms": timing.execution_ms,
        "partial": end.partial,
        "timestamp": timing.finished_at,
    }
    return Chunk("done", data)


def merged(into: RunId, answer: NodeId, timing: Timing) -> Chunk:
    """The last chunk of a run whose question another run answered."""
    data = {
        "reason": "merged",
        "merged_into": into,
        "message_id": answer,
        "context_id": answer,
        "response": "",  # it was sent once, by the run that made it
        "tokens_used": 0,
        "model": None,
        "execution_time_ms": timing.execution_ms,
        "partial": False,
        "timestamp": timing.finished_at,
    }
    return Chunk("done", data)


def _error(end: Fail, node_id: NodeId, timing: Timing) -> Chunk:
    refusal = end.refusal  # of a budget that is spent
    known = {
        "provider": end.provider,
        "provider_status": end.status,
        "retry_after_s": refusal.retry_after_s if refusal else end.retry_after_s,
    }
    data = {
        "error_type": end.error_type,
        "message": end.told,
        "retryable": end.retryable,
        "context_id": node_id,
        "timestamp": timing.finished_at,
        **(refusal.facts if refusal else {}),
        **{name: value for name, value in known.items() if value is not None},
    }
    return Chunk("error", data)


# -- what a run is shown of the past

LONGEST_S = 0.5
TOO_SLOW = f"nothing was looked up: it took longer than {LONGEST_S:g} s"
FAILED = "nothing was looked up: it failed; the operator finds why in the log"
SWITCHED_OFF = "switched off by context.semantic"

Found = tuple[tuple[Recalled, ...], str]  # and why there is nothing


@dataclass(frozen=True, slots=True)
class TurnRecall:
    """An answer goes on without its memory rather than not at all."""

    remember: Remember | None = None
    vaults: Mapping[AgentId, Vault] = field(default_factory=dict)  # of agents that read notes

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        key, vault = new.session_key, self.vaults.get(agent.id)
        listed: tuple[Recalled, ...] = ()
        if vault is not None:
            person = person_key(key, new.sender)
            listed, _ = await _found(partial(vault.named, person, key, new.accepted_at), new)
        if self.remember is None or not agent.context.semantic:
            return listed, SWITCHED_OFF if self.remember else ""
        asked = (new.content, key, new.sender, agent, episode.nodes)
        look = partial(self.remember.of, *asked, is_all=episode.is_all)
        found, missing = await _found(look, new)
        return (*listed, *found), missing


async def _found(look: Callable[[], Awaitable[tuple[Recalled, ...]]], new: NewEntry) -> Found:
    with anyio.move_on_after(LONGEST_S):
        found = await result_of("nothing remembered", look, run=new.run_id)
        return ((), FAILED) if found is None else (found, "")
    log.warning("nothing remembered in time", extra={"run": new.run_id})
    return (), TOO_SLOW


# -- the work


@dataclass(frozen=True, slots=True)
class RunWorker:
    """Brings accepted messages to their one end."""

    agents: Mapping[AgentId, AgentDef]
    runner: Runner
    inbox: Inbox
    journal: Journal
    episodes: Episodes
    souls: Souls
    settings: SettingsBook
    clock: Clock
    bus: Bus
    encode: Encode
    decode: Decode
    runs: LiveRuns = field(default_factory=dict)
    recall: TurnRecall = TurnRecall()
    compact: Callable[[SessionKey, AgentDef, RunId], None] = lambda key, agent, run_id: None
    channels: frozenset[str] = frozenset()  # whose answers leave through the outbox
    extractor: FactExtractor | None = None  # None: no facts are extracted
    on_finished: Callable[[SessionKey], None] = lambda key: None  # a turn is in the store

    async def work(self, batch: TurnBatch) -> None:
        """Messages that are merged end along with the one that carries them. Only cancellation gets
        out of here, and then all are still in the inbox."""
        entry, run, key = batch.entry, batch.run, batch.run.session_key
        if self.extractor is not None:
            await self.extractor.settled(key)
        attempt, earlier = entry.attempts, NO_ATTEMPTS
        if entry.state == "queued":
            attempt = await retry_store(self.clock, self.inbox.begin, run.run_id)
        if attempt > 1:
            earlier = await earlier_attempts(run.run_id, self.journal, self.clock, self.decode)
        journal = RecordedJournal(run.run_id, self.clock, self.journal, self.encode, earlier)
        asked = [one.run.run_id for one in batch.asked]
        run.start(attempt, journal.begin(attempt, asked, run.control), journal)
        try:
            end = await self._finish(batch, journal)
        except anyio.get_cancelled_exc_class():
            # An attempt that we cut off in good order does not count against the message.
            with anyio.move_on_after(LAST_WORDS_S, shield=True), contextlib.suppress(GatewayError):
                await self.journal.forgive(run.run_id)
            raise
        finally:
            run.release()
        for ended in (*batch.merged, batch.asked[-1]):
            self.runs.pop(ended.run.run_id, None)
            ended.run.publish()
        if self.extractor is not None:
            said = [_said(one.entry.new) for one in (*batch.asked, *batch.taken)]
            self.extractor.told(key, said, end.nodes[-1].id)
        if end.event is not None:
            self.bus.publish(end.event)
        if batch.crowded is not None:
            self.compact(key, batch.crowded, run.run_id)

    async def _finish(self, batch: TurnBatch, journal: RecordedJournal) -> RunEnd:
        """Drives the run to its end, and commits that."""
        run, facts = batch.run, {"run": batch.run.run_id}
        agent = self.agents.get(run.session_key.agent)
        read = partial(self._episode, batch, agent)
        episode = await result_of("a conversation cannot be read", read, **facts)
        if episode is None:
            episode = Episode(None)
            end = _messages(batch, None).refused("internal_error", DEFECT, run.timing(journal))
        else:
            end = await self.end_of(batch, agent, episode, journal)
        commit = partial(self._commit, batch, episode, end, journal)
        if not await result_of("an answer cannot be stored", commit, **facts):
            # Something in the answer cannot be kept; the question can, and an honest word.
            run.progress = dict
            for sealed in (batch.asked[-1], *batch.merged):
                sealed.run.unseal()
            batch.taken = ()
            messages = _messages(batch, episode.head)
            end = messages.refused("internal_error", DEFECT, run.timing(journal))
            await self._commit(batch, episode, end, journal)
        return end

    async def _episode(self, batch: TurnBatch, agent: AgentDef | None) -> Episode:
        entry, key, upto = batch.entry, batch.run.session_key, batch.entry.new.context_id
        if entry.seq == 1 and upto is None:
            return Episode(None, is_all=True)  # nothing was said before the first
        rules = agent.context if agent else ContextRules()
        clock, recall = self.clock, self.episodes.recall
        episode = await retry_store(clock, recall, key, rules)
        if upto is None or episode.is_summed_up_after(upto):
            return episode
        try:
            return await retry_store(clock, recall, key, rules, upto=upto)
        except NotFound:
            log.warning("the place to go on from is gone", extra={"node": upto})
            return episode

    async def end_of(
        self,
        batch: TurnBatch,
        agent: AgentDef | None,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None = None,
    ) -> RunEnd:
        """How the run ends when it goes on from there. `read` is what a recorded run had read."""
        run, messages = batch.run, _messages(batch, episode.head)
        if batch.is_poison:
            told = f"This message was set aside: the gateway stopped {MOST_ATTEMPTS} times over it."
            return messages.refused("internal_error", told, run.timing(journal))
        if agent is None:
            told = f"The agent {run.session_key.agent!r} is no longer configured."
            return messages.refused("config_error", told, run.timing(journal))
        drive = partial(self._drive, batch, agent, episode, journal, read)
        result = await result_of("a run failed", drive, run=run.run_id)
        if result is None:
            return messages.refused("internal_error", DEFECT, run.timing(journal))
        if result.taken:
            batch.take(result.taken)
            messages = _messages(batch, episode.head)
        return messages.answered(result, run.timing(journal))

    async def _drive(
        self,
        batch: TurnBatch,
        agent: AgentDef,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None,
    ) -> RunResult:
        new, run, runner, rules = batch.entry.new, batch.run, self.runner, self.runner.rules()
        agent = await self._configured(batch, agent)
        if run.attempt > 1:
            run.emit(_made_anew(journal.moment().wall))
        if read is None:
            read = await self._read(batch, agent, episode, rules)
        assignment = Assignment(
            agent,
            new.content,
            ToolScope(new.session_key, new.run_id, batch.person, asked=_source(new)),
            agent.id,
            self.souls.of(agent.id),
            episode.nodes,
            Besides(
                episode.summary,
                read.recalled,
                read.missing,
                [Message("user", one.entry.new.content) for one in batch.asked[:-1]],
                new.message_id,
                self.souls.template_of(agent.id),
            ),
            read.notices,
            read.kept,
            new.context_id,
        )
        job = runner.job(assignment, rules, journal, read.lacking)
        if job.context.tokens >= context_line(agent) and await self._was_near(episode):
            job = replace(job, was_near=True)
        batch.most_nodes = agent.context.max_nodes
        batch.crowded = agent if job.context.is_crowded else None
        driver = runner.driver(job, journal, run.emit, run.control)
        run.progress = driver.progress
        scene = {
            "limits": plain_limits(agent.limits),
            "tree": {"name": agent.tree, "text": runner.plans.digest(agent.id)},
            "decision": job.agent.decision,
            "rules": dict(rules.digests),
        }
        await journal.begins(job, scene, read.plain())
        try:
            return await driver.drive()
        finally:
            journal.ends()

    async def _configured(self, batch: TurnBatch, agent: AgentDef) -> AgentDef:
        """The agent as whoever asks has set it, for the session, and with the message itself."""
        settings, asked = self.settings.known.get(batch.person), batch.entry.new.limits
        if settings is None:
            settings = await retry_store(self.clock, self.settings.of, batch.person)
        if batch.model is not None:
            settings = settings.patched({"oracle_model": batch.model})
        return as_wished(agent, settings, asked) if settings.kept or asked else agent

    async def _read(
        self, batch: TurnBatch, agent: AgentDef, episode: Episode, rules: RuleSet
    ) -> RunInputs:
        new, key, clock, now = batch.entry.new, batch.run.session_key, self.clock, self.clock.now()
        claim = self.journal.claim_notices
        notices = await retry_store(clock, claim, batch.person, key, new.run_id, now=now)
        lacking = await self.runner.lacking(agent, batch.run.control)
        recalled, missing = await self.recall.of(new, agent, episode)
        state: object = None
        if rules.keeps_state:
            text = await retry_store(clock, self.journal.rule_state, key)
            state = self.decode(text) if text else None
        kept = state if isinstance(state, dict) else {}
        return RunInputs(tuple(notices), kept, recalled, missing, tuple(lacking))

    async def _was_near(self, episode: Episode) -> bool:
        """Whether the run before had come near the window's end."""
        if not episode.nodes:
            return False
        before = episode.nodes[-1].run_id
        record = await retry_store(self.clock, self.inbox.find_run, before)
        summary = self.decode(record.summary) if record and record.summary else {}
        return isinstance(summary, dict) and CONTEXT in summary.get("warned", ())

    async def _commit(
        self, batch: TurnBatch, episode: Episode, end: RunEnd, journal: RecordedJournal
    ) -> bool:
        """Commits the end of the run, and of those that are merged into it; gives True."""
        new, run, key, result = batch.entry.new, batch.run, batch.run.session_key, end.result
        run.seal(end.terminal)
        run.state = "ended"
        summary = {**run.summary(self.clock), "termination_reason": end.outcome}
        part, pack = await journal.last_part()
        kept = result.kept if result else None
        deliveries: tuple[NewDelivery, ...] = ()
        # What came by a channel that is gone is kept for the operator.
        if key.channel in self.channels or new.whence is not None:
            place = (key.channel, key.account, *new.whither)
            deliveries = (NewDelivery(f"d_{new.message_id}", *place, end.text, new.whence),)
        ending = Ending(
            run_id=new.run_id,
            session_key=key,
            state="dead" if batch.is_poison else "done",
            outcome=end.outcome,
            nodes=end.nodes,
            grown_from=episode.head,
            take_head=new.context_id is not None and episode.head is not None,
            journal=pack,
            part=part,
            summary=self.encode(summary).decode(),
            finished_at=self.clock.now(),
            deliveries=deliveries,
            person=batch.person,
            posts=result.posts if result else (),
            leaves_claimed=result is not None and not result.has_told,
            rule_state=None if kept is None else self.encode(dict(kept)).decode(),
            merged=tuple([self._merged(run, end, one) for one in batch.merged]),
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

    def _merged(self, into: LiveRun, end: RunEnd, one: QueuedMessage) -> Merged:
        run, moment = one.run, Moment(self.clock.now(), self.clock.monotonic())
        run.start(max(1, one.entry.attempts), moment)
        run.seal(merged(into.run_id, end.nodes[-1].id, Timing(moment.wall, 0)))
        run.state = "ended"
        ended = {"termination_reason": "merged", "merged_into": into.run_id}
        summary = self.encode({**run.summary(self.clock), **ended}).decode()
        return Merged(run.run_id, pack_text(run.events), summary)


def _messages(batch: TurnBatch, parent: NodeId | None) -> TurnMessages:
    asked = [one.entry.new for one in batch.asked]
    return TurnMessages(asked, parent, [one.entry.new for one in batch.taken])


def _source(new: NewEntry) -> SaidSource:
    said_by = new.sender or new.session_key.peer
    return SaidSource(new.message_id, new.session_key, new.accepted_at, new.content, said_by)


def _said(new: NewEntry) -> SaidMessage:
    node = NodeId(new.message_id)
    return SaidMessage(node, new.run_id, new.sender, new.content, new.accepted_at)


def _made_anew(at: datetime) -> Chunk:
    data = {
        "system_type": "notice",
        "system_message": "The gateway restarted; this answer is made again.",
        "metadata": {"discard_from_seq": 1},
        "timestamp": at,
    }
    return Chunk("system", data)
