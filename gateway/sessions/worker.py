"""What a lane does with a message: prepare, drive the agent, end the run in one commit, tell the end."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import ceil

import anyio

from gateway.agent.driver import Assignment, Driver, Runner
from gateway.agent.effects import Fail, Finish, Moment, RunResult
from gateway.agent.journal import RunJournal, retry_store
from gateway.agent.limits import CONTEXT, context_line, plain_limits
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import AgentDef, ContextRules, person_key
from gateway.domain.errors import GatewayError, NotFound
from gateway.domain.events import Event
from gateway.domain.facts import Recalled, Remember, SaidMessage, SaidSource
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Ending, EndState, Merged, NewDelivery, NewEntry
from gateway.domain.journal import JournalEntry, grants_of, pack_text
from gateway.domain.messages import Chunk, ErrorType, Message, Node, NodeStatus
from gateway.domain.ports import Clock, Decode, Encode, Inbox, Journal, ToolScope
from gateway.domain.sessions import with_settings
from gateway.domain.supervision import result_of
from gateway.memory.context import ContextExtras
from gateway.memory.extraction import FactExtractor
from gateway.memory.recall import Vault
from gateway.memory.souls import Souls
from gateway.memory.window import Episode, Episodes, message_tokens
from gateway.sessions.journal import RunInputs
from gateway.sessions.lanes import QueuedMessage, TurnBatch
from gateway.sessions.runs import LiveRuns, RecordedJournal
from gateway.sessions.settings import SettingsBook

log = logging.getLogger(__name__)

SHOWN_TEXT = 150_000  # characters in the last event; all of it was sent before, in pieces
MOST_ATTEMPTS = 3
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
    state: EndState = "done"


@dataclass(frozen=True, slots=True)
class TurnMessages:
    """The messages that a run answers, its own the last, and those that it `took` on its way; all
    grow from `parent`. `began`: by the clock that never jumps."""

    asked: Sequence[NewEntry]
    parent: NodeId | None = None
    began: float = 0.0
    took: Sequence[NewEntry] = ()

    def answered(self, result: RunResult, moment: Moment) -> RunEnd:
        """The end of a run that was driven, whether it was answered, stopped or broken off."""
        end = result.end
        status: NodeStatus = "complete"
        if isinstance(end, Finish) and end.partial:
            status = "cancelled" if end.reason == "cancelled" else "partial"
        elif isinstance(end, Fail):
            status = "error" if end.text == end.told else "partial"
        nodes = self._nodes(result.said, moment.wall, status, result.model)
        last = nodes[-1].id
        if isinstance(end, Fail):
            error = _error(end, last, moment.wall)
            return RunEnd("failed", nodes, error, end.text, result.farewell, result)
        done = {
            "reason": end.reason,
            "message_id": last,
            "context_id": last,
            "response": end.text[:SHOWN_TEXT],
            **({"truncated": True} if len(end.text) > SHOWN_TEXT else {}),
            **({"cut": True} if result.finish in {"length", "overrun"} else {}),
            **({"filtered": True} if result.finish == "content_filter" else {}),
            "tokens_used": result.usage.total,
            "model": result.model,
            "execution_time_ms": ceil((moment.at - self.began) * 1000),
            "partial": end.partial,
            "timestamp": moment.wall,
        }
        return RunEnd(end.reason, nodes, Chunk("done", done), end.text, result.farewell, result)

    def refused(self, error_type: ErrorType, told: str, moment: Moment) -> RunEnd:
        """The end of a run that no model was asked for, or that a defect of ours broke off."""
        at, new = moment.wall, self.asked[-1]
        nodes = self._nodes((Message("assistant", told),), at, "error", None)
        terminal = _error(Fail(told, told, error_type), nodes[-1].id, at)
        facts = {"reason": error_type, "exchange_saved": True, "cancelled": False, "partial": True}
        event = Event("session.end", "info", "sessions", at, new.session_key, new.run_id, facts)
        return RunEnd("failed", nodes, terminal, told, event)

    def _nodes(
        self, said: Sequence[Message], at: datetime, status: NodeStatus, model: str | None
    ) -> tuple[Node, ...]:
        """The questions and all that was said after them, each the parent of the next. A question
        keeps the id of its message and the run that it was accepted with. `status` is that of the
        last."""
        own, asked, took, parent = self.asked[-1], iter(self.asked), iter(self.took), self.parent
        questions = [Message("user", new.content) for new in self.asked]
        nodes: list[Node] = []
        for place, message in enumerate((*questions, *said), 1 - len(questions)):
            new = None
            if message.role == "user":
                new = next(asked if place < 1 else took, None)
            node = Node(
                id=NodeId(new.message_id if new else f"{own.message_id}.{place}"),
                parent_id=parent,
                run_id=(new or own).run_id,
                message=message,
                created_at=new.accepted_at if new else at,
                token_count=message_tokens(message),
                status=status if place == len(said) else "complete",
                model=model if message.role == "assistant" else None,
            )
            nodes.append(node)
            parent = node.id
        return tuple(nodes)


def merged(into: RunId, answer: NodeId, at: datetime) -> Chunk:
    """The last chunk of a run whose question another run answered."""
    data = {
        "reason": "merged",
        "merged_into": into,
        "message_id": answer,
        "context_id": answer,
        "response": "",  # it was sent once, by the run that made it
        "tokens_used": 0,
        "model": None,
        "execution_time_ms": 0,
        "partial": False,
        "timestamp": at,
    }
    return Chunk("done", data)


def _error(end: Fail, node_id: NodeId, at: datetime) -> Chunk:
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
        "timestamp": at,
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
        look = partial(self.remember.for_turn, *asked, is_all=episode.is_all)
        found, missing = await _found(look, new)
        return (*listed, *found), missing


async def _found(look: Callable[[], Awaitable[tuple[Recalled, ...]]], new: NewEntry) -> Found:
    with anyio.move_on_after(LONGEST_S):
        found = await result_of("nothing remembered", {"run": new.run_id}, look)
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
        attempt = entry.attempts
        if entry.state == "queued":
            attempt = await retry_store(self.clock, self.inbox.begin, run.run_id)
        parts: Sequence[bytes] = ()
        granted: Sequence[JournalEntry] = ()
        if attempt > 1:
            parts = await retry_store(self.clock, self.journal.read, run.run_id)
            granted = grants_of(parts, self.decode)
        recording = (run.run_id, self.clock, self.journal, self.encode)
        journal = RecordedJournal(*recording, granted=granted, parts=len(parts))
        run.start(attempt, journal.begin(attempt, batch.news, run.control), journal)
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
            said = [
                SaidMessage(
                    NodeId(one.message_id), one.run_id, one.sender, one.content, one.accepted_at
                )
                for one in (*batch.news, *batch.took)
            ]
            self.extractor.extract(key, said, end.nodes[-1].id)
        if end.event is not None:
            self.bus.publish(end.event)
        if batch.crowded is not None:
            self.compact(key, batch.crowded, run.run_id)

    async def _finish(self, batch: TurnBatch, journal: RecordedJournal) -> RunEnd:
        """Drives the run to its end, and commits that."""
        run, facts = batch.run, {"run": batch.run.run_id}
        agent = self.agents.get(run.session_key.agent)
        unread = "a conversation cannot be read"
        episode = await result_of(unread, facts, self._episode, batch, agent)
        messages = TurnMessages(batch.news, episode.head if episode else None, run.began)
        if episode is None:
            episode = Episode(None)
            end = messages.refused("internal_error", DEFECT, journal.moment())
        else:
            end = await self.end_of(batch, agent, episode, journal)
        unstored, given = "an answer cannot be stored", (batch, episode, end, journal)
        if not await result_of(unstored, facts, self._commit, *given):
            # Something in the answer cannot be kept; the question can, and an honest word.
            run.progress = dict
            for sealed in (batch.asked[-1], *batch.merged):
                sealed.run.unseal()
            batch.take(())
            state = end.state
            end = messages.refused("internal_error", DEFECT, journal.moment())
            await self._commit(batch, episode, replace(end, state=state), journal)
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
        run, messages = batch.run, TurnMessages(batch.news, episode.head, batch.run.began)
        if run.attempt - batch.entry.forgiven > MOST_ATTEMPTS:
            told = f"This message was set aside: the gateway stopped {MOST_ATTEMPTS} times over it."
            end = messages.refused("internal_error", told, journal.moment())
            return replace(end, state="dead")
        if agent is None:
            told = f"The agent {run.session_key.agent!r} is no longer configured."
            return messages.refused("config_error", told, journal.moment())
        facts, given = {"run": run.run_id}, (batch, agent, episode, journal, read)
        result = await result_of("a run failed", facts, self._drive, *given)
        if result is None:
            return messages.refused("internal_error", DEFECT, journal.moment())
        if result.taken:
            batch.take(result.taken)
            messages = replace(messages, took=batch.took)
        return messages.answered(result, journal.moment())

    async def _drive(
        self,
        batch: TurnBatch,
        agent: AgentDef,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None,
    ) -> RunResult:
        new, run, runner, rules = batch.entry.new, batch.run, self.runner, self.runner.rules()
        settings = self.settings.known.get(batch.person)
        if settings is None:
            settings = await retry_store(self.clock, self.settings.of, batch.person)
        if batch.model is not None:
            settings = settings.patched({"oracle_model": batch.model})
        if settings.kept or new.limits:
            agent = with_settings(agent, settings, new.limits)
        if run.attempt > 1:
            run.emit(_made_anew(journal.moment().wall))
        if read is None:
            read = await self._read(batch, agent, episode, rules)
        job = runner.job(
            self._assignment(batch, agent, episode, read), rules, journal, read.lacking
        )
        if job.context.tokens >= context_line(agent) and await self._was_near(episode):
            job = replace(job, was_near=True)
        batch.most_nodes = agent.context.max_nodes
        batch.crowded = agent if job.context.is_crowded else None
        model, gate = runner.model, runner.gate
        driver = Driver(job, model, gate, journal, run.emit, control=run.control)
        run.progress = driver.progress
        scene = {
            "limits": plain_limits(agent.limits),
            "tree": {"name": agent.tree, "text": job.plan_digest},
            "decision": job.agent.decision,
            "rules": dict(rules.digests),
        }
        await journal.begins(job, scene, read.plain())
        try:
            return await driver.drive()
        finally:
            journal.ends()

    def _assignment(
        self, batch: TurnBatch, agent: AgentDef, episode: Episode, read: RunInputs
    ) -> Assignment:
        new, key, souls, earlier = (
            batch.entry.new,
            batch.run.session_key,
            self.souls,
            batch.news[:-1],
        )
        said_by = new.sender or key.peer
        source = SaidSource(new.message_id, key, new.accepted_at, new.content, said_by)
        besides = ContextExtras(
            episode.summary,
            read.recalled,
            read.missing,
            [Message("user", one.content) for one in earlier] if earlier else (),
            new.message_id,
            souls.template_of(agent.id),
        )
        return Assignment(
            agent,
            new.content,
            ToolScope(key, new.run_id, batch.person, asked=source),
            agent.id,
            souls.of(agent.id),
            episode.nodes,
            besides,
            read.notices,
            read.kept,
            new.context_id,
        )

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
            place = (key.channel, key.account, *new.destination)
            deliveries = (NewDelivery(f"d_{new.message_id}", *place, end.text, new.whence),)
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
            summary=self.encode(summary).decode(),
            finished_at=self.clock.now(),
            deliveries=deliveries,
            person=batch.person,
            posts=result.posts if result else (),
            leaves_claimed=result is not None and not result.has_told,
            rule_state=None if kept is None else self.encode(dict(kept)).decode(),
            merged=tuple(map(partial(self._merged, run.run_id, end), batch.merged)),
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

    def _merged(self, into: RunId, end: RunEnd, one: QueuedMessage) -> Merged:
        run, moment = one.run, Moment(self.clock.now(), self.clock.monotonic())
        run.start(max(1, one.entry.attempts), moment)
        run.seal(merged(into, end.nodes[-1].id, moment.wall))
        run.state = "ended"
        ended = {"termination_reason": "merged", "merged_into": into}
        summary = self.encode({**run.summary(self.clock), **ended}).decode()
        return Merged(run.run_id, pack_text(run.events), summary)


def _made_anew(at: datetime) -> Chunk:
    data = {
        "system_type": "notice",
        "system_message": "The gateway restarted; this answer is made again.",
        "metadata": {"discard_from_seq": 1},
        "timestamp": at,
    }
    return Chunk("system", data)
