"""What a lane does with a message: prepare, drive the agent, end the run in one commit, tell the end."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any

import anyio

from gateway.agent.driver import Assignment, Runner
from gateway.agent.effects import Fail, Finish, Moment, RunResult
from gateway.agent.journal import RunJournal, retry_store
from gateway.agent.limits import CONTEXT, context_line, plain_limits
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import AgentDef, ContextRules, person_key
from gateway.domain.errors import BadSessionKey, GatewayError, NotFound
from gateway.domain.events import Batching, Event, Notice
from gateway.domain.facts import Fact, Recalled, Remember, SaidMessage, SaidSource
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey, to_micros, to_time
from gateway.domain.inbox import Ending, Entry, Merged, NewDelivery, NewEntry
from gateway.domain.journal import Attempt, damaged, pack_text
from gateway.domain.mcp import Lacking
from gateway.domain.messages import Chunk, Message, Node, NodeStatus, Usage
from gateway.domain.ports import Clock, Decode, Encode, Inbox, Journal, ToolScope
from gateway.domain.sessions import as_wished
from gateway.domain.supervision import survives
from gateway.memory.context import Besides
from gateway.memory.episodes import Episode, Episodes
from gateway.memory.extraction import FactExtractor
from gateway.memory.recall import Vault
from gateway.memory.souls import Souls
from gateway.memory.window import message_tokens
from gateway.sessions.journal import NONE, RecordedJournal, earlier_attempts
from gateway.sessions.lanes import QueuedMessage, TurnBatch
from gateway.sessions.runs import LiveRun, LiveRuns, Timing
from gateway.sessions.settings import SettingsBook

SHOWN_TEXT = 150_000  # characters in the last event; all of it was told before, in pieces


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ends. `outcome` is the reason of `done`, or `failed`."""

    outcome: str
    nodes: tuple[Node, ...]
    terminal: Chunk
    usage: Usage
    text: str
    farewell: Event | None = None
    posts: tuple[Notice, ...] = ()
    kept: Mapping[str, object] | None = None  # by rules
    has_told: bool = True


@dataclass(frozen=True, slots=True)
class Questions:
    """The messages that a run answers, its own the last; and those that it took on its way."""

    entries: Sequence[Entry]
    taken: Sequence[Entry] = ()


def answered(asked: Questions, answer: RunResult, parent: NodeId | None, timing: Timing) -> RunEnd:
    """The end of a run that was driven, whether it was answered, stopped or broken off."""
    end = answer.end
    status: NodeStatus = "complete"
    if isinstance(end, Finish) and end.partial:
        status = "cancelled" if end.reason == "cancelled" else "partial"
    elif not isinstance(end, Finish):
        status = "error" if end.text == end.told else "partial"
    nodes = _nodes(asked, answer.said, parent, timing, status=status, model=answer.model)
    if isinstance(end, Finish):
        outcome, terminal = str(end.reason), _done(end, answer, nodes[-1].id, timing)
    else:
        known = (end.error_type, end.told, nodes[-1].id, timing)
        terminal = _error(*known, retryable=end.retryable, facts=_facts(end))
        outcome = "failed"
    left = (answer.farewell, answer.posts, answer.kept, answer.has_told)
    return RunEnd(outcome, nodes, terminal, answer.usage, end.text, *left)


def _facts(end: Fail) -> Mapping[str, object]:
    """What is known besides: of the provider that failed, or of the budget that is spent."""
    after, told = end.retry_after_s, dict[str, object]()
    if end.refusal is not None:
        told, after = dict(end.refusal.facts), end.refusal.retry_after_s
    more = {"provider": end.provider, "provider_status": end.status, "retry_after_s": after}
    return told | {name: value for name, value in more.items() if value is not None}


def refused(
    asked: Questions, error_type: str, told: str, parent: NodeId | None, timing: Timing
) -> RunEnd:
    """The end of a run that no model was asked for, or that a defect of ours broke off."""
    said = (Message("assistant", told),)
    nodes = _nodes(asked, said, parent, timing, status="error", model=None)
    terminal = _error(error_type, told, nodes[-1].id, timing, retryable=False)
    told_last = {"reason": error_type, "exchange_saved": True, "cancelled": False, "partial": True}
    new, at = asked.entries[-1].new, timing.finished_at
    farewell = Event("session.end", "info", "sessions", at, new.session_key, new.run_id, told_last)
    return RunEnd("failed", nodes, terminal, Usage(), told, farewell)


def merged(into: RunId, answer: NodeId, timing: Timing) -> Chunk:
    """How a run ends whose question another run answered."""
    data = {
        "reason": "merged",
        "merged_into": into,
        "message_id": answer,
        "context_id": answer,
        "response": "",  # it was told once, by the run that made it
        "tokens_used": 0,
        "model": None,
        "execution_time_ms": timing.execution_ms,
        "partial": False,
        "timestamp": timing.finished_at,
    }
    return Chunk("done", data)


def _nodes(
    asked: Questions,
    said: tuple[Message, ...],
    parent: NodeId | None,
    timing: Timing,
    *,
    status: NodeStatus,
    model: str | None,
) -> tuple[Node, ...]:
    """The questions and all that was said after them, each the parent of the next. A question keeps
    the id of its message and the run that it was accepted with. `status` is that of the last."""
    own, placed, nodes = asked.entries[-1].new, _placed(asked, said), list[Node]()
    last, first_said = len(placed) - 1, len(asked.entries) - 1
    for place, (new, message) in enumerate(placed):
        node_id = f"{own.message_id}.{place - first_said}" if new is None else new.message_id
        node = Node(
            id=NodeId(node_id),
            parent_id=parent,
            run_id=(new or own).run_id,
            message=message,
            created_at=timing.finished_at if new is None else new.accepted_at,
            token_count=message_tokens(message),
            status=status if place == last else "complete",
            model=model if message.role == "assistant" else None,
        )
        nodes.append(node)
        parent = node.id
    return tuple(nodes)


def _placed(
    asked: Questions, said: tuple[Message, ...]
) -> Sequence[tuple[NewEntry | None, Message]]:
    """All messages of a run in order, a question with what was accepted."""
    taken, placed = iter(asked.taken), list[tuple[NewEntry | None, Message]]()
    for entry in asked.entries:
        placed += ((entry.new, Message("user", entry.new.content)),)
    for message in said:
        its = next(taken, None) if message.role == "user" else None
        placed += ((its.new if its else None, message),)
    return placed


def _done(end: Finish, answer: RunResult, node_id: NodeId, timing: Timing) -> Chunk:
    data = {
        "reason": end.reason,
        "message_id": node_id,
        "context_id": node_id,
        "response": end.text[:SHOWN_TEXT],
        **({"truncated": True} if len(end.text) > SHOWN_TEXT else {}),
        **({"cut": True} if answer.finish in {"length", "overrun"} else {}),
        **({"filtered": True} if answer.finish == "content_filter" else {}),
        "tokens_used": answer.usage.total,
        "model": answer.model,
        "execution_time_ms": timing.execution_ms,
        "partial": end.partial,
        "timestamp": timing.finished_at,
    }
    return Chunk("done", data)


NO_FACTS: Mapping[str, object] = {}


def _error(
    error_type: str,
    told: str,
    node_id: NodeId,
    timing: Timing,
    *,
    retryable: bool,
    facts: Mapping[str, object] = NO_FACTS,
) -> Chunk:
    data = {
        "error_type": error_type,
        "message": told,
        "retryable": retryable,
        "context_id": node_id,
        "timestamp": timing.finished_at,
    }
    return Chunk("error", {**data, **facts})


log = logging.getLogger(__name__)

LONGEST_S = 0.5
TOO_SLOW = f"nothing was looked up: it took longer than {LONGEST_S:g} s"
FAILED = "nothing was looked up: it failed; the operator finds why in the log"
SWITCHED_OFF = "switched off by context.semantic"

Found = tuple[tuple[Recalled, ...], str]  # and why there is nothing
Look = Callable[[], Awaitable[tuple[Recalled, ...]]]


@dataclass(frozen=True, slots=True)
class TurnRecall:
    """An answer goes on without its memory rather than not at all."""

    remember: Remember | None = None
    vaults: Mapping[AgentId, Vault] = field(default_factory=dict)  # of agents that read notes

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        vault = self.vaults.get(agent.id)
        listed: tuple[Recalled, ...] = ()
        if vault is not None:
            key = new.session_key
            names = partial(vault.named, person_key(key, new.sender), key, new.accepted_at)
            listed, _ = await self._found(names, new)
        if self.remember is None or not agent.context.semantic:
            return listed, SWITCHED_OFF if self.remember else ""
        asked = (new.content, new.session_key, new.sender, agent, episode.nodes)
        found, missing = await self._found(
            partial(self.remember.of, *asked, is_all=episode.is_all), new
        )
        return (*listed, *found), missing

    async def _found(self, look: Look, new: NewEntry) -> Found:
        try:
            with anyio.fail_after(LONGEST_S):
                return await look(), ""
        except TimeoutError:
            log.warning("nothing remembered in time", extra={"run": new.run_id})
            return (), TOO_SLOW
        except Exception:
            log.exception("nothing remembered", extra={"run": new.run_id})
            return (), FAILED


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What a run read before it began, besides the conversation: a replay reads the same again."""

    notices: tuple[Notice, ...] = ()  # from other sessions
    kept: Mapping[str, object] = field(default_factory=dict)  # by rules, of this session
    recalled: tuple[Recalled, ...] = ()
    missing: str = ""  # why nothing was recalled
    lacking: tuple[Lacking, ...] = ()  # tool servers that were not there

    def plain(self) -> dict[str, object]:
        """Without what is empty, as it mostly is."""
        plain: dict[str, object] = {}
        if self.notices:
            plain["notices"] = [_plain_notice(one) for one in self.notices]
        if self.kept:
            plain["kept"] = self.kept
        if self.recalled:
            plain["recalled"] = [_plain(one) for one in self.recalled]
        if self.missing:
            plain["missing"] = self.missing
        if self.lacking:
            plain["lacking"] = [[one.server, one.why] for one in self.lacking]
        return plain


def read_in(attempt: Attempt) -> RunInputs:
    """What the recorded run read. Raises JournalUnreadable."""
    begun = (one.values[1] for one in attempt.entries if one.kind == "begin")
    plain: Mapping[str, Any] = next(begun, {})
    try:
        return RunInputs(
            tuple(_notice(**told) for told in plain.get("notices", ())),
            plain.get("kept", {}),
            tuple(Recalled(**_values(one)) for one in plain.get("recalled", ())),
            plain.get("missing", ""),
            tuple(Lacking(*one) for one in plain.get("lacking", ())),
        )
    except (TypeError, ValueError, AttributeError, OverflowError, BadSessionKey) as error:
        raise damaged(error) from error


def _plain_notice(notice: Notice) -> dict[str, object]:
    until = notice.expires_at
    return {**asdict(notice), "expires_at": None if until is None else to_micros(until)}


def _notice(*, expires_at: int | None, batching: dict[str, Any], **more: Any) -> Notice:
    until = None if expires_at is None else to_time(expires_at)
    return Notice(**more, expires_at=until, batching=Batching(**batching))


_NAMES = {kind: [one.name for one in fields(kind)] for kind in (Recalled, Fact)}
_TIMES = frozenset({"at", "learned_at", "valid_from", "valid_to", "superseded_at"})


def _plain(thing: Recalled | Fact) -> dict[str, object]:
    values = {name: getattr(thing, name) for name in _NAMES[type(thing)]}
    for name in _TIMES & values.keys():
        values[name] = to_micros(values[name]) if values[name] else None
    values["session_key"] = str(thing.session_key)
    if isinstance(thing, Recalled) and thing.fact:
        values["fact"] = _plain(thing.fact)
    return values


def _values(plain: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(plain)
    for name, value in plain.items():
        if name in _TIMES and value is not None:
            values[name] = to_time(value)
        elif name == "session_key":
            values[name] = SessionKey.parse(value)
        elif name == "source_message_ids":
            values[name] = tuple(value)
        elif name == "fact" and value is not None:
            values[name] = Fact(**_values(value))
    return values


MOST_ATTEMPTS = 3
_ENTRY, _RUN, _RUN_ID = attrgetter("entry"), attrgetter("run"), attrgetter("run.run_id")
_CONTENT = attrgetter("entry.new.content")
LAST_WORDS_S = 1.0
DEFECT = "Something went wrong inside the gateway; the operator finds it in the log."


@dataclass(frozen=True, slots=True)
class WorkerDeps:
    """All that working on a message needs."""

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
    recollection: TurnRecall = TurnRecall()
    compact: Callable[[SessionKey, AgentDef, RunId], None] = lambda key, agent, run_id: None
    channels: frozenset[str] = frozenset()  # whose answers leave through the outbox
    keeper: FactExtractor | None = None  # None: nobody looks for facts
    said: Callable[[SessionKey], None] = lambda key: None  # is told when a turn is in the store


class Worker:
    """Brings accepted messages to their one end."""

    def __init__(self, means: WorkerDeps, runs: LiveRuns) -> None:
        self.means = means
        self._runs = runs

    async def __call__(self, batch: TurnBatch) -> None:
        """Messages that are merged end along with the one that carries them. Only cancellation gets
        out of here, and then all are still in the inbox."""
        means, entry, run = self.means, batch.entry, batch.run
        if means.keeper is not None:
            await means.keeper.settled(run.session_key)
        attempt = entry.attempts
        if entry.state == "queued":
            attempt = await retry_store(means.clock, means.inbox.begin, run.run_id)
        journal = await self._journal(run.run_id, attempt)
        asked = list(map(_RUN_ID, batch.asked))
        run.start(attempt, journal.begin(attempt, asked, run.control), journal)
        try:
            end = await self._to_its_end(batch, journal)
        except anyio.get_cancelled_exc_class():
            await self._forgive(run)
            raise
        finally:
            run.release()
        for ended in (*map(_RUN, batch.merged), run):
            self._runs.close(ended.run_id)
            ended.publish()
        if means.keeper is not None:
            means.keeper.told(run.session_key, _said(batch), end.nodes[-1].id)
        if end.farewell is not None:
            means.bus.publish(end.farewell)
        if batch.crowds is not None:
            means.compact(run.session_key, batch.crowds, run.run_id)

    async def _journal(self, run_id: RunId, attempt: int) -> RecordedJournal:
        means, earlier = self.means, NONE
        if attempt > 1:
            earlier = await earlier_attempts(run_id, means.journal, means.clock, means.decode)
        return RecordedJournal(run_id, means.clock, means.journal, means.encode, earlier)

    async def _forgive(self, run: LiveRun) -> None:
        """An attempt that we cut off in good order does not count against the message."""
        with anyio.move_on_after(LAST_WORDS_S, shield=True), contextlib.suppress(GatewayError):
            await self.means.journal.forgive(run.run_id)

    async def _to_its_end(self, batch: TurnBatch, journal: RecordedJournal) -> RunEnd:
        entry, run = batch.entry, batch.run
        agent = self.means.agents.get(entry.new.session_key.agent)
        try:
            episode = await self._recall(entry, agent)
        except Exception:
            log.exception("a conversation cannot be read", extra={"run": run.run_id})
            episode = Episode(None)
            end = refused(_asked(batch), "internal_error", DEFECT, None, run.timing(journal))
        else:
            end = await self.end_of(batch, agent, episode, journal)
        try:
            await self._commit(batch, episode, end, journal)
        except Exception:
            # Something in the answer cannot be kept; the question can, and an honest word.
            log.exception("an answer cannot be stored", extra={"run": run.run_id})
            run.progress = dict
            for sealed in (run, *(one.run for one in batch.merged)):
                sealed.unseal()
            batch.taken = ()
            told = (_asked(batch), "internal_error", DEFECT, episode.head, run.timing(journal))
            end = refused(*told)
            await self._commit(batch, episode, end, journal)
        return end

    async def _recall(self, entry: Entry, agent: AgentDef | None) -> Episode:
        rules = agent.context if agent else ContextRules()
        key, upto = entry.new.session_key, entry.new.context_id
        if entry.seq == 1 and upto is None:
            return Episode(None, is_all=True)  # nothing was said before the first
        clock, recall = self.means.clock, self.means.episodes.recall
        if upto is not None:
            episode = await retry_store(clock, recall, key, rules)
            if episode.is_summed_up_after(upto):
                return episode
        try:
            return await retry_store(clock, recall, key, rules, upto=upto)
        except NotFound:
            log.warning("the place to go on from is gone", extra={"node": upto})
            return await retry_store(clock, recall, key, rules)

    async def end_of(
        self,
        batch: TurnBatch,
        agent: AgentDef | None,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None = None,
    ) -> RunEnd:
        """How the run ends when it goes on from there. `read` is what a recorded run had read."""
        entry, run = batch.entry, batch.run
        if _is_poison(entry, run):
            told = f"This message was set aside: the gateway stopped {MOST_ATTEMPTS} times over it."
            return refused(_asked(batch), "internal_error", told, episode.head, run.timing(journal))
        if agent is None:
            told = f"The agent {entry.new.session_key.agent!r} is no longer configured."
            return refused(_asked(batch), "config_error", told, episode.head, run.timing(journal))
        try:
            answer = await self._drive(batch, agent, episode, journal, read)
        except BaseException as error:
            if not survives(error):
                raise
            log.exception("a run failed", extra={"run": run.run_id})
            return refused(
                _asked(batch), "internal_error", DEFECT, episode.head, run.timing(journal)
            )
        batch.take(answer.taken)
        return answered(_asked(batch), answer, episode.head, run.timing(journal))

    async def _drive(
        self,
        batch: TurnBatch,
        agent: AgentDef,
        episode: Episode,
        journal: RunJournal,
        read: RunInputs | None,
    ) -> RunResult:
        means, new, run = self.means, batch.entry.new, batch.run
        agent = await self._as_wished(batch, agent)
        if run.attempt > 1:
            run.emit(_made_again(journal.moment().wall))
        rules, runner = means.runner.rules(), means.runner
        if read is None:
            read = await self._read(batch, agent, episode, rules)
        earlier = list(map(partial(Message, "user"), map(_CONTENT, batch.asked[:-1])))
        template = means.souls.template_of(agent.id)
        besides = (episode.summary, read.recalled, read.missing, earlier, new.message_id, template)
        assignment = Assignment(
            agent,
            new.content,
            _scope_of(new, batch.person),
            agent.id,
            means.souls.of(agent.id),
            episode.nodes,
            Besides(*besides),
            read.notices,
            read.kept,
            new.context_id,
        )
        job = runner.job(assignment, rules, journal, read.lacking)
        if job.context.tokens >= context_line(agent) and await self._was_near(episode):
            job = replace(job, was_near=True)
        batch.most_nodes = agent.context.max_nodes
        batch.crowds = agent if job.context.is_crowded else None
        driver = runner.driver(job, journal, run.emit, run.control)
        run.progress = driver.progress
        tree = {"name": agent.tree, "text": runner.plans.digest(agent.id)}
        limits, decision = plain_limits(agent.limits), job.agent.decision
        scene = {"limits": limits, "tree": tree, "decision": decision}
        await journal.begins(job, {**scene, "rules": dict(rules.digests)}, read.plain())
        try:
            return await driver.drive()
        finally:
            journal.ends()

    async def _read(
        self, batch: TurnBatch, agent: AgentDef, episode: Episode, rules: RuleSet
    ) -> RunInputs:
        means, new, key = self.means, batch.entry.new, batch.entry.new.session_key
        claim, now = means.journal.claim_notices, means.clock.now()
        notices = await retry_store(means.clock, claim, batch.person, key, new.run_id, now=now)
        lacking = await means.runner.lacking(agent, batch.run.control)
        recalled, missing = await means.recollection.of(new, agent, episode)
        kept: object = None
        if rules.keeps_state:
            text = await retry_store(means.clock, means.journal.rule_state, key)
            kept = means.decode(text) if text else None
        kept = kept if isinstance(kept, dict) else {}
        return RunInputs(tuple(notices), kept, recalled, missing, tuple(lacking))

    async def _was_near(self, episode: Episode) -> bool:
        """Whether the run before had come near the window's end."""
        if not episode.nodes:
            return False
        means, before = self.means, episode.nodes[-1].run_id
        record = await retry_store(means.clock, means.inbox.find_run, before)
        summary = means.decode(record.summary) if record and record.summary else {}
        match summary:
            case {"warned": list(warned)}:
                return CONTEXT in warned
            case _:
                return False

    async def _as_wished(self, batch: TurnBatch, agent: AgentDef) -> AgentDef:
        """By whoever asks, for the session, and with the message itself."""
        means, new = self.means, batch.entry.new
        settings = means.settings.known.get(batch.person)
        if settings is None:
            settings = await retry_store(means.clock, means.settings.of, batch.person)
        if batch.model is None and not settings.kept and not new.limits:
            return agent
        if batch.model is not None:
            settings = settings.patched({"oracle_model": batch.model})
        return as_wished(agent, settings, new.limits)

    async def _commit(
        self, batch: TurnBatch, episode: Episode, end: RunEnd, journal: RecordedJournal
    ) -> None:
        means, entry, run = self.means, batch.entry, batch.run
        new = entry.new
        run.seal(end.terminal)
        run.state = "ended"
        summary = {**run.summary(means.clock), "termination_reason": end.outcome}
        part, pack = await journal.last_part()
        ending = Ending(
            run_id=new.run_id,
            session_key=new.session_key,
            state="dead" if _is_poison(entry, run) else "done",
            outcome=end.outcome,
            nodes=end.nodes,
            grown_from=episode.head,
            take_head=new.context_id is not None and episode.head is not None,
            journal=pack,
            part=part,
            summary=means.encode(summary).decode(),
            finished_at=means.clock.now(),
            deliveries=self._deliveries(entry, end),
            person=batch.person,
            posts=end.posts,
            leaves_claimed=not end.has_told,
            rule_state=means.encode(dict(end.kept)).decode() if end.kept is not None else None,
            merged=tuple(map(partial(self._merged, run, end), batch.merged)),
            most_nodes=batch.most_nodes,
        )
        moved = await retry_store(means.clock, means.inbox.finish, ending)
        means.said(new.session_key)
        agent = means.agents.get(new.session_key.agent)
        if moved and agent is not None:
            means.episodes.append(new.session_key, episode, end.nodes, agent.context)
        else:
            means.episodes.forget(new.session_key)

    def _merged(self, into: LiveRun, end: RunEnd, one: QueuedMessage) -> Merged:
        means, its = self.means, one.run
        moment = Moment(means.clock.now(), means.clock.monotonic())
        its.start(max(1, one.entry.attempts), moment)
        its.seal(merged(into.run_id, end.nodes[-1].id, Timing(moment.wall, 0)))
        its.state = "ended"
        ended = {"termination_reason": "merged", "merged_into": into.run_id}
        summary = means.encode({**its.summary(means.clock), **ended}).decode()
        return Merged(its.run_id, pack_text(its.events), summary)

    def _deliveries(self, entry: Entry, end: RunEnd) -> tuple[NewDelivery, ...]:
        new, key = entry.new, entry.new.session_key
        if key.channel not in self.means.channels and new.whence is None:
            return ()  # what came by a channel that is gone is kept for the operator
        place = (key.channel, key.account, *new.whither)
        delivery = NewDelivery(f"d_{new.message_id}", *place, end.text, new.whence)
        return (delivery,)


def _scope_of(new: NewEntry, person: str) -> ToolScope:
    said_by = new.sender or new.session_key.peer
    asked = SaidSource(new.message_id, new.session_key, new.accepted_at, new.content, said_by)
    return ToolScope(new.session_key, new.run_id, person, asked=asked)


def _said(batch: TurnBatch) -> Sequence[SaidMessage]:
    said: list[SaidMessage] = []
    for one in (*batch.asked, *batch.taken):
        new = one.entry.new
        node = NodeId(new.message_id)
        said.append(SaidMessage(node, new.run_id, new.sender, new.content, new.accepted_at))
    return said


def _asked(batch: TurnBatch) -> Questions:
    return Questions(tuple(map(_ENTRY, batch.asked)), tuple(map(_ENTRY, batch.taken)))


def _is_poison(entry: Entry, run: LiveRun) -> bool:
    return run.attempt - entry.forgiven > MOST_ATTEMPTS


def _made_again(at: datetime) -> Chunk:
    return Chunk(
        "system",
        {
            "system_type": "notice",
            "system_message": "The gateway restarted; this answer is made again.",
            "metadata": {"discard_from_seq": 1},
            "timestamp": at,
        },
    )
