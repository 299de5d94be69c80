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
from gateway.agent.effects import Fail, Moment, RunResult
from gateway.agent.journal import RunJournal, retry_store
from gateway.agent.limits import CONTEXT, context_line, plain_limits
from gateway.codec import decode, encode
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import AgentDef, ContextRules, person_key
from gateway.domain.errors import GatewayError, NotFound
from gateway.domain.events import Event
from gateway.domain.facts import Recalled, SaidMessage, SaidSource
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Ending, EndState, Merged, NewDelivery, NewEntry
from gateway.domain.journal import JournalEntry, grants_of, pack_text
from gateway.domain.messages import Chunk, ErrorType, Message, Node, NodeStatus
from gateway.domain.ports import Clock, Inbox, Journal, ToolScope
from gateway.domain.sessions import with_settings
from gateway.domain.supervision import result_of
from gateway.memory.context import ContextExtras
from gateway.memory.extraction import FactExtractor
from gateway.memory.recall import Recall, Vault
from gateway.memory.souls import Souls
from gateway.memory.window import Episode, Episodes, message_tokens
from gateway.sessions.journal import RecordedJournal, RunInputs
from gateway.sessions.lanes import TurnBatch
from gateway.sessions.runs import LiveRun, LiveRuns
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


def answered(batch: TurnBatch, parent: NodeId | None, result: RunResult, moment: Moment) -> RunEnd:
    """The end of a run that was driven, whether it was answered, stopped or broken off."""
    end = result.end
    status: NodeStatus = "complete"
    if isinstance(end, Fail):
        status = "error" if end.text == end.told else "partial"
    elif end.partial:
        status = "cancelled" if end.reason == "cancelled" else "partial"
    nodes = _nodes(batch, parent, result.said, moment.wall, status=status, model=result.model)
    last = nodes[-1].id
    if isinstance(end, Fail):
        error = _error(end, last, moment.wall)
        return RunEnd("failed", nodes, error, end.text, result.farewell, result)
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
    return RunEnd(end.reason, nodes, Chunk("done", done), end.text, result.farewell, result)


def refused(
    batch: TurnBatch, parent: NodeId | None, error_type: ErrorType, told: str, moment: Moment
) -> RunEnd:
    """The end of a run that no model was asked for, or that a defect of ours broke off."""
    at, run = moment.wall, batch.run
    answer = Message("assistant", told)
    nodes = _nodes(batch, parent, [answer], at, status="error", model=None)
    terminal = _error(Fail(told, told, error_type), nodes[-1].id, at)
    facts = {"reason": error_type, "exchange_saved": True, "cancelled": False, "partial": True}
    event = Event("session.end", "info", "sessions", at, run.session_key, run.run_id, facts)
    return RunEnd("failed", nodes, terminal, told, event)


def _nodes(
    batch: TurnBatch,
    parent: NodeId | None,
    said: Sequence[Message],
    at: datetime,
    *,
    status: NodeStatus,
    model: str | None,
) -> tuple[Node, ...]:
    """The questions and all that was said after them, each the parent of the next. A question keeps
    the id of its message and the run that it was accepted with. `status` is that of the last."""
    questions = [Message("user", one.new.content) for one in batch.asked]
    runs = iter((*batch.asked, *batch.took))  # of what users said, in order
    nodes: list[Node] = []
    for place, message in enumerate((*questions, *said), 1 - len(questions)):
        asked = next(runs, None) if message.role == "user" else None
        node = Node(
            id=NodeId(asked.new.message_id if asked else f"{batch.run.new.message_id}.{place}"),
            parent_id=parent,
            run_id=(asked or batch.run).run_id,
            message=message,
            created_at=asked.new.accepted_at if asked else at,
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

    memory: Recall | None = None
    vaults: Mapping[AgentId, Vault] = field(default_factory=dict)  # of agents that read notes

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        key, vault = new.session_key, self.vaults.get(agent.id)
        listed: tuple[Recalled, ...] = ()
        if vault is not None:
            person = person_key(key, new.sender)
            listed, _ = await _found(partial(vault.named, person, key, new.accepted_at), new)
        if self.memory is None or not agent.context.semantic:
            return listed, SWITCHED_OFF if self.memory else ""
        look = partial(
            self.memory.for_turn,
            new.content,
            key,
            new.sender,
            agent,
            episode.nodes,
            is_all=episode.is_all,
        )
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
    runs: LiveRuns = field(default_factory=dict)
    recall: TurnRecall = TurnRecall()
    compact: Callable[[SessionKey, AgentDef, RunId], None] = lambda key, agent, run_id: None
    channels: frozenset[str] = frozenset()  # whose answers leave through the outbox
    extractor: FactExtractor | None = None  # None: no facts are extracted
    on_finished: Callable[[SessionKey], None] = lambda key: None  # a turn is in the store

    async def work(self, batch: TurnBatch) -> None:
        """Messages that are merged end along with the one that carries them. Only cancellation gets
        out of here, and then all are still in the inbox."""
        run, key = batch.run, batch.run.session_key
        if self.extractor is not None:
            await self.extractor.settled(key)
        attempt = run.entry.attempts
        if run.entry.state == "queued":
            attempt = await retry_store(self.clock, self.inbox.begin, run.run_id)
        parts: Sequence[bytes] = ()
        granted: Sequence[JournalEntry] = ()
        if attempt > 1:
            parts = await retry_store(self.clock, self.journal.read, run.run_id)
            granted = grants_of(parts, decode)
        journal = RecordedJournal(
            run.run_id, self.clock, self.journal, granted=granted, parts=len(parts)
        )
        asked = [one.run_id for one in batch.asked]
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
        for ended in (*batch.merged, run):
            self.runs.pop(ended.run_id, None)
            ended.publish()
        if self.extractor is not None:
            self.extractor.extract(key, _said(batch), end.nodes[-1].id)
        if end.event is not None:
            self.bus.publish(end.event)
        if batch.crowded is not None:
            self.compact(key, batch.crowded, run.run_id)

    async def _finish(self, batch: TurnBatch, journal: RecordedJournal) -> RunEnd:
        """Drives the run to its end, and commits that."""
        run, facts = batch.run, {"run": batch.run.run_id}
        agent = self.agents.get(run.session_key.agent)
        unread, unstored = "a conversation cannot be read", "an answer cannot be stored"
        episode = await result_of(unread, facts, self._episode, batch, agent)
        if episode is None:
            episode = Episode(None)
            end = refused(batch, None, "internal_error", DEFECT, journal.moment())
        else:
            end = await self.end_of(batch, agent, episode, journal)
        if not await result_of(unstored, facts, self._commit, batch, episode, end, journal):
            # Something in the answer cannot be kept; the question can, and an honest word.
            run.progress = dict
            for sealed in (run, *batch.merged):
                sealed.unseal()
            batch.take(())
            state = end.state
            end = refused(batch, episode.head, "internal_error", DEFECT, journal.moment())
            await self._commit(batch, episode, replace(end, state=state), journal)
        return end

    async def _episode(self, batch: TurnBatch, agent: AgentDef | None) -> Episode:
        key, upto = batch.run.session_key, batch.run.new.context_id
        if batch.run.entry.seq == 1 and upto is None:
            return Episode(None, is_all=True)  # nothing was said before the first
        rules = agent.context if agent else ContextRules()
        episode = await retry_store(self.clock, self.episodes.recall, key, rules)
        if upto is None or episode.is_summed_up_after(upto):
            return episode
        try:
            return await retry_store(self.clock, self.episodes.recall, key, rules, upto=upto)
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
        run, parent = batch.run, episode.head
        if run.attempt - run.entry.forgiven > MOST_ATTEMPTS:
            told = f"This message was set aside: the gateway stopped {MOST_ATTEMPTS} times over it."
            end = refused(batch, parent, "internal_error", told, journal.moment())
            return replace(end, state="dead")
        if agent is None:
            told = f"The agent {run.session_key.agent!r} is no longer configured."
            return refused(batch, parent, "config_error", told, journal.moment())
        facts, drive = {"run": run.run_id}, self._drive
        result = await result_of("a run failed", facts, drive, batch, agent, episode, journal, read)
        if result is None:
            return refused(batch, parent, "internal_error", DEFECT, journal.moment())
        if result.taken:
            batch.take(result.taken)
        return answered(batch, parent, result, journal.moment())

    async def _drive(
        self,
        batch: TurnBatch,
        agent: AgentDef,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None,
    ) -> RunResult:
        run, runner, rules = batch.run, self.runner, self.runner.rules.now
        settings = self.settings.known.get(batch.person)
        if settings is None:
            settings = await retry_store(self.clock, self.settings.of, batch.person)
        if batch.model is not None:
            settings = settings.patched({"oracle_model": batch.model})
        if settings.kept or run.new.limits:
            agent = with_settings(agent, settings, run.new.limits)
        if run.attempt > 1:
            run.emit(_made_anew(journal.moment().wall))
        if read is None:
            read = await self._read(batch, agent, episode, rules)
        assignment = self._assignment(batch, agent, episode, read)
        job = runner.job(assignment, rules, journal, read.lacking)
        if job.context.tokens >= context_line(agent) and await self._was_near(episode):
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
        await journal.begins(job, scene, read.plain())
        try:
            return await driver.drive()
        finally:
            journal.ends()

    def _assignment(
        self, batch: TurnBatch, agent: AgentDef, episode: Episode, read: RunInputs
    ) -> Assignment:
        new, key, earlier = batch.run.new, batch.run.session_key, batch.asked[:-1]
        said_by = new.sender or key.peer
        source = SaidSource(new.message_id, key, new.accepted_at, new.content, said_by)
        besides = ContextExtras(
            summary=episode.summary,
            recalled=read.recalled,
            missing=read.missing,
            earlier=[Message("user", one.new.content) for one in earlier] if earlier else (),
            question_id=new.message_id,
            template=self.souls.templates.get(agent.id),
        )
        return Assignment(
            agent,
            new.content,
            ToolScope(key, new.run_id, batch.person, asked=source),
            plan_of=agent.id,
            soul=self.souls.by_agent.get(agent.id),
            earlier=episode.nodes,
            besides=besides,
            notices=read.notices,
            kept=read.kept,
            context_id=new.context_id,
        )

    async def _read(
        self, batch: TurnBatch, agent: AgentDef, episode: Episode, rules: RuleSet
    ) -> RunInputs:
        run, key, clock, journal = batch.run, batch.run.session_key, self.clock, self.journal
        notices = await retry_store(
            clock, journal.claim_notices, batch.person, key, run.run_id, now=clock.now()
        )
        lacking = await self.runner.lacking(agent, run.control)
        recalled, missing = await self.recall.of(run.new, agent, episode)
        state: object = None
        if rules.keeps_state:
            text = await retry_store(clock, journal.rule_state, key)
            state = decode(text) if text else None
        kept = state if isinstance(state, dict) else {}
        return RunInputs(tuple(notices), kept, recalled, missing, tuple(lacking))

    async def _was_near(self, episode: Episode) -> bool:
        """Whether the run before had come near the window's end."""
        if not episode.nodes:
            return False
        before = episode.nodes[-1].run_id
        record = await retry_store(self.clock, self.inbox.find_run, before)
        summary = decode(record.summary) if record and record.summary else {}
        return isinstance(summary, dict) and CONTEXT in summary.get("warned", ())

    async def _commit(
        self, batch: TurnBatch, episode: Episode, end: RunEnd, journal: RecordedJournal
    ) -> bool:
        """Commits the end of the run, and of those that are merged into it; gives True."""
        run, new, key, result = batch.run, batch.run.new, batch.run.session_key, end.result
        summary = self._seal(run, end.terminal, termination_reason=end.outcome)
        part, pack = await journal.last_part()
        kept = result.kept if result else None
        deliveries: tuple[NewDelivery, ...] = ()
        # What came by a channel that is gone is kept for the operator.
        if key.channel in self.channels or new.whence is not None:
            peer, thread = new.destination
            name = f"d_{new.message_id}"
            delivery = NewDelivery(
                name, key.channel, key.account, peer, thread, end.text, new.whence
            )
            deliveries = (delivery,)
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
            summary=summary,
            finished_at=self.clock.now(),
            deliveries=deliveries,
            person=batch.person,
            posts=result.posts if result else (),
            leaves_claimed=result is not None and not result.has_told,
            rule_state=None if kept is None else encode(dict(kept)).decode(),
            merged=self._merged(batch, end),
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

    def _seal(self, run: LiveRun, terminal: Chunk, **ended: object) -> str:
        """Ends the run; gives the summary that is kept of it."""
        run.seal(terminal)
        run.state = "ended"
        return encode({**run.summary(self.clock), **ended}).decode()

    def _merged(self, batch: TurnBatch, end: RunEnd) -> tuple[Merged, ...]:
        """Ends the runs that this one answers along with its own."""
        into, found = batch.run.run_id, list[Merged]()
        for one in batch.merged:
            moment = Moment(self.clock.now(), self.clock.monotonic())
            one.start(max(1, one.entry.attempts), moment)
            terminal = merged(into, end.nodes[-1].id, moment.wall)
            summary = self._seal(one, terminal, termination_reason="merged", merged_into=into)
            found.append(Merged(one.run_id, pack_text(one.events), summary))
        return tuple(found)


def _said(batch: TurnBatch) -> Sequence[SaidMessage]:
    """What users said in this turn."""
    said: list[SaidMessage] = []
    for one in (*batch.asked, *batch.took):
        new, node_id = one.new, NodeId(one.new.message_id)
        said.append(SaidMessage(node_id, one.run_id, new.sender, new.content, new.accepted_at))
    return said


def _made_anew(at: datetime) -> Chunk:
    data = {
        "system_type": "notice",
        "system_message": "The gateway restarted; this answer is made again.",
        "metadata": {"discard_from_seq": 1},
        "timestamp": at,
    }
    return Chunk("system", data)
