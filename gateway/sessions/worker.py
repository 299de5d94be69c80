"""What a lane does with a message: prepare, drive the agent, end the run in one commit, tell the end."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from math import ceil
from typing import Any, Protocol

import anyio

from gateway.agent.driver import Driver, Pace
from gateway.agent.effects import Answer, Fail, Finish, Gate, Job, Json, Story, until_stored
from gateway.agent.leaves import Plans, prepared
from gateway.agent.limits import CONTEXT, context_line
from gateway.agent.turn import LIMITS
from gateway.control.notices import Bus, notice_of
from gateway.control.policy import DecisionTrees
from gateway.control.rules import RuleSet, RunRules
from gateway.domain.agents import AgentDef, ContextRules, person_in, person_key, speaker
from gateway.domain.errors import BadSessionKey, GatewayError, NotFound
from gateway.domain.events import Event, Notice, NoticeBoard, RuleStates
from gateway.domain.facts import Fact, Recalled, Remember, Said, Source
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey, to_micros, to_time
from gateway.domain.inbox import Ending, Entry, Merged, NewDelivery, NewEntry
from gateway.domain.messages import Chunk, Message, Node, NodeStatus, Price, Usage, unpriced
from gateway.domain.ports import (
    Clock,
    Decode,
    Encode,
    Inbox,
    Journal,
    Model,
    Runs,
    ToolScope,
)
from gateway.domain.sessions import as_wished
from gateway.domain.supervision import survives
from gateway.domain.tape import Record, Tape
from gateway.memory.context import Besides, Context, pack
from gateway.memory.episodes import Episode, Episodes
from gateway.memory.extraction import Keeper
from gateway.memory.recall import Vault
from gateway.memory.souls import Souls
from gateway.memory.window import message_tokens
from gateway.sessions.journal import (
    Recorder,
    TapedClock,
    TapedGate,
    TapedModel,
    TapedPace,
    TapedStore,
    damaged,
    to_be_packed,
)
from gateway.sessions.lanes import Batch, Waiting
from gateway.sessions.runs import LiveRun, LiveRuns
from gateway.sessions.settings import SettingsBook

SHOWN_TEXT = 150_000  # characters in the last event; all of it was told before, in pieces


@dataclass(frozen=True, slots=True)
class End:
    """`outcome` is the reason of `done`, or `failed`."""

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
class Timing:
    finished_at: datetime
    execution_ms: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The messages that a run answers, its own the last; and those that it took on its way."""

    entries: Sequence[Entry]
    taken: Sequence[Entry] = ()


def answered(asked: Asked, answer: Answer, parent: NodeId | None, timing: Timing) -> End:
    """The end of a run that was driven, whether it was answered, stopped or broken off."""
    end = answer.end
    status: NodeStatus = "complete"
    if isinstance(end, Finish) and end.partial:
        status = "cancelled" if end.reason == "cancelled" else "partial"
    elif not isinstance(end, Finish):
        status = "error" if end.text == end.told else "partial"
    nodes = _nodes(asked, answer.said, parent, timing, status=status, model=answer.model)
    if isinstance(end, Finish):
        data = _done(end, answer, nodes[-1].id, timing)
        done = Chunk("done", data)
        return _end(end.reason, nodes, done, answer)
    terminal = _error(end.error_type, end.told, nodes[-1].id, timing, retryable=end.retryable)
    terminal = Chunk("error", {**terminal.data, **_facts(end)})
    return _end("failed", nodes, terminal, answer)


def _facts(end: Fail) -> Mapping[str, object]:
    """What is known besides: of the provider that failed, or of the budget that is spent."""
    after, told = end.retry_after_s, dict[str, object]()
    if end.refusal is not None:
        told, after = dict(end.refusal.facts), end.refusal.retry_after_s
    more = {"provider": end.provider, "provider_status": end.status, "retry_after_s": after}
    return told | {name: value for name, value in more.items() if value is not None}


def _end(outcome: str, nodes: tuple[Node, ...], terminal: Chunk, answer: Answer) -> End:
    text, farewell = answer.end.text, answer.farewell
    told = (answer.usage, text, farewell, answer.posts, answer.kept, answer.has_told)
    return End(outcome, nodes, terminal, *told)


def refused(asked: Asked, error_type: str, told: str, parent: NodeId | None, timing: Timing) -> End:
    """The end of a run that no model was asked for, or that a defect of ours broke off."""
    said = (Message("assistant", told),)
    nodes = _nodes(asked, said, parent, timing, status="error", model=None)
    terminal = _error(error_type, told, nodes[-1].id, timing, retryable=False)
    told_last = {"reason": error_type, "exchange_saved": True, "cancelled": False, "partial": True}
    new, at = asked.entries[-1].new, timing.finished_at
    farewell = Event("session.end", "info", "sessions", at, new.session_key, new.run_id, told_last)
    return End("failed", nodes, terminal, Usage(), told, farewell)


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
    asked: Asked,
    said: tuple[Message, ...],
    parent: NodeId | None,
    timing: Timing,
    *,
    status: NodeStatus,
    model: str | None,
) -> tuple[Node, ...]:
    """The questions and all that was said after them, each the parent of the next. `status` is that
    of the last."""
    nodes: list[Node] = []
    placed = list(_placed(asked, said, timing))
    for place, (node_id, run_id, at, message) in enumerate(placed, 1):
        node = Node(
            id=node_id,
            parent_id=parent,
            run_id=run_id,
            message=message,
            created_at=at,
            token_count=message_tokens(message),
            status=status if place == len(placed) else "complete",
            model=model if message.role == "assistant" else None,
        )
        nodes.append(node)
        parent = node_id
    return tuple(nodes)


def _placed(
    asked: Asked, said: Sequence[Message], timing: Timing
) -> Iterator[tuple[NodeId, RunId, datetime, Message]]:
    """A question keeps the id of its message and the run that it was accepted with."""
    own, taken = asked.entries[-1].new, iter(asked.taken)
    for entry in asked.entries:
        yield _question(entry.new, Message("user", entry.new.content))
    for place, message in enumerate(said, 1):
        its = next(taken, None) if message.role == "user" else None
        if its is not None:
            yield _question(its.new, message)
        else:
            node_id = NodeId(f"{own.message_id}.{place}")
            yield node_id, own.run_id, timing.finished_at, message


def _question(new: NewEntry, message: Message) -> tuple[NodeId, RunId, datetime, Message]:
    return NodeId(new.message_id), new.run_id, new.accepted_at, message


def _done(end: Finish, answer: Answer, node_id: NodeId, timing: Timing) -> Mapping[str, object]:
    return {
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


def _error(
    error_type: str, told: str, node_id: NodeId, timing: Timing, *, retryable: bool
) -> Chunk:
    return Chunk(
        "error",
        {
            "error_type": error_type,
            "message": told,
            "retryable": retryable,
            "context_id": node_id,
            "timestamp": timing.finished_at,
        },
    )


log = logging.getLogger(__name__)

LONGEST_S = 0.5
TOO_SLOW = f"nothing was looked up: it took longer than {LONGEST_S:g} s"
FAILED = "nothing was looked up: it failed; the operator finds why in the log"
SWITCHED_OFF = "switched off by context.semantic"

Found = tuple[tuple[Recalled, ...], str]  # and why there is nothing
Look = Callable[[], Awaitable[tuple[Recalled, ...]]]


def person_of(new: NewEntry) -> str:
    """Who is let in: whose settings hold, and whom a tool is told of."""
    key = new.session_key
    return speaker(key.channel, key.account, person_in(key, new.sender))


class Recollection(Protocol):
    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        """For the question of a message; never fails."""
        ...


@dataclass(frozen=True, slots=True)
class Recollected:
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
class TapedRecollection:
    recollection: Recollection
    record: Record

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        found, missing = await self.recollection.of(new, agent, episode)
        if found or missing:
            self.record("remembered", [_plain(one) for one in found], missing)
        return found, missing


@dataclass(frozen=True, slots=True)
class RecollectionThen:
    """The same again, whatever is known by now."""

    found: Found

    async def of(self, new: NewEntry, agent: AgentDef, episode: Episode) -> Found:
        return self.found


def recollection_on(tape: Tape) -> RecollectionThen:
    """Raises TapeUnreadable."""
    found, missing = next((m.values for m in tape.marks if m.kind == "remembered"), ([], ""))
    try:
        return RecollectionThen((tuple(Recalled(**_values(one)) for one in found), missing))
    except (TypeError, ValueError, AttributeError, OverflowError, BadSessionKey) as error:
        raise damaged(error) from error


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
LAST_WORDS_S = 1.0
DEFECT = "Something went wrong inside the gateway; the operator finds it in the log."


@dataclass(frozen=True, slots=True)
class Means:
    """All that working on a message needs."""

    agents: Mapping[AgentId, AgentDef]
    inbox: Inbox
    journal: Journal
    runs: Runs
    episodes: Episodes
    souls: Souls
    model: Model
    gate: Gate
    settings: SettingsBook
    clock: Clock
    bus: Bus
    encode: Encode
    decode: Decode
    plans: Plans
    rules: Callable[[], RuleSet]
    rule_states: RuleStates
    notices: NoticeBoard
    decisions: DecisionTrees = DecisionTrees()
    recollection: Recollection = Recollected()
    compact: Callable[[SessionKey, AgentDef, RunId], None] = lambda key, agent, run_id: None
    channels: frozenset[str] = frozenset()  # whose answers leave through the outbox
    pace: Pace = field(default_factory=Pace)
    price: Price = unpriced
    keeper: Keeper | None = None  # None: nobody looks for facts
    said: Callable[[SessionKey], None] = lambda key: None  # is told when a turn is in the store

    def fresh_rules(self) -> RuleSet:
        """The same rules, whose failures count nowhere else."""
        rules = self.rules()
        return RuleSet(rules.rules, rules.refused)

    def through(self, recorder: Recorder) -> "Means":
        """The same, with a recorder in front of all that a run is told by."""
        store = TapedStore(self.journal, self.rule_states, self.notices, recorder)
        return replace(
            self,
            model=TapedModel(self.model, recorder),
            gate=TapedGate(self.gate, recorder),
            clock=TapedClock(self.clock, recorder),
            journal=store,
            rule_states=store,
            notices=store,
            recollection=TapedRecollection(self.recollection, recorder),
            pace=TapedPace(recorder),
        )


class Work:
    def __init__(self, means: Means, runs: LiveRuns) -> None:
        self.means = means
        self._runs = runs

    async def __call__(self, batch: Batch) -> None:
        """Brings accepted messages to their one end, those that are merged along with the one that
        carries them. Only cancellation gets out of here, and then all are still in the inbox."""
        means, entry, run = self.means, batch.entry, batch.run
        if means.keeper is not None:
            await means.keeper.settled(run.session_key)
        attempt = entry.attempts
        if entry.state == "queued":
            attempt = await until_stored(means.clock, lambda: means.inbox.begin(entry.new.run_id))
        recorder = Recorder([one.entry.new.run_id for one in batch.asked])
        taped = Work(means.through(recorder), self._runs)
        run.start(attempt, taped.means.clock.now(), taped.means.clock.monotonic())
        recorder.listen(run.reins)  # after the time of its start: a replay has to know that first
        try:
            end = await taped.bring_to_its_end(batch, recorder)
        except anyio.get_cancelled_exc_class():
            await self._forgive(run)
            raise
        finally:
            run.let_go()
        for ended in (*(one.run for one in batch.merged), run):
            self._runs.close(ended.run_id)
            ended.publish()
        if means.keeper is not None:
            means.keeper.told(run.session_key, _said(batch), end.nodes[-1].id)
        if end.farewell is not None:
            means.bus.publish(end.farewell)
        if batch.crowds is not None:
            means.compact(run.session_key, batch.crowds, run.run_id)

    async def _forgive(self, run: LiveRun) -> None:
        """We are cut off in good order: that must not count against the message."""
        with anyio.move_on_after(LAST_WORDS_S, shield=True), contextlib.suppress(GatewayError):
            await self.means.journal.forgive(run.run_id)

    async def bring_to_its_end(self, batch: Batch, recorder: Recorder) -> End:
        entry, run = batch.entry, batch.run
        agent = self.means.agents.get(entry.new.session_key.agent)
        try:
            episode = await self._recall(entry, agent)
        except Exception:
            log.exception("a conversation cannot be read", extra={"run": run.run_id})
            episode = Episode(None)
            end = refused(_asked(batch), "internal_error", DEFECT, None, self._timing(run))
        else:
            end = await self.end_of(batch, agent, episode)
        tape = await to_be_packed(recorder, self.means.encode)
        try:
            await self._commit(batch, episode, end, tape)
        except Exception:
            # Something in the answer cannot be kept; the question can, and an honest word.
            log.exception("an answer cannot be stored", extra={"run": run.run_id})
            run.progress = dict
            for sealed in (run, *(one.run for one in batch.merged)):
                sealed.unseal()
            batch.taken = ()
            asked = _asked(batch)
            sorry = refused(asked, "internal_error", DEFECT, episode.head, self._timing(run))
            await self._commit(batch, episode, sorry, tape)
            return sorry
        return end

    async def _recall(self, entry: Entry, agent: AgentDef | None) -> Episode:
        rules = agent.context if agent else ContextRules()
        key, upto = entry.new.session_key, entry.new.context_id
        if entry.seq == 1 and upto is None:
            return Episode(None, is_all=True)  # nothing was said before the first
        means = self.means
        recall = means.episodes.recall
        if upto is not None:
            episode = await until_stored(means.clock, lambda: recall(key, rules))
            if episode.is_summed_up_after(upto):
                return episode
        try:
            return await until_stored(means.clock, lambda: recall(key, rules, upto=upto))
        except NotFound:
            log.warning("the place to go on from is gone", extra={"node": upto})
            return await until_stored(means.clock, lambda: recall(key, rules))

    async def end_of(self, batch: Batch, agent: AgentDef | None, episode: Episode) -> End:
        """How it ends when it goes on from there."""
        entry, run, asked = batch.entry, batch.run, _asked(batch)

        def timing() -> Timing:
            return self._timing(run)

        if _is_poison(entry, run):
            told = f"This message was set aside: the gateway stopped {MOST_ATTEMPTS} times over it."
            return refused(asked, "internal_error", told, episode.head, timing())
        if agent is None:
            told = f"The agent {entry.new.session_key.agent!r} is no longer configured."
            return refused(asked, "config_error", told, episode.head, timing())
        try:
            answer = await self._drive(batch, agent, episode)
        except BaseException as error:
            if not survives(error):
                raise
            log.exception("a run failed", extra={"run": run.run_id})
            return refused(asked, "internal_error", DEFECT, episode.head, timing())
        batch.take(answer.taken)
        return answered(_asked(batch), answer, episode.head, timing())

    def _timing(self, run: LiveRun) -> Timing:
        clock = self.means.clock
        # The wall clock may jump; how long it took may not.
        return Timing(clock.now(), ceil((clock.monotonic() - run.began) * 1000))

    async def _drive(self, batch: Batch, agent: AgentDef, episode: Episode) -> Answer:
        means, new, run = self.means, batch.entry.new, batch.run
        person = person_of(new)
        agent = await self._as_wished(batch, agent)
        story = Story(new.run_id, means.journal, means.clock, Json(means.encode, means.decode))
        if run.attempt > 1:
            run.emit(_made_again(means.clock.now()))
            await story.recall()
        key = new.session_key
        waiting = await until_stored(
            means.clock,
            lambda: means.notices.claim(person, key, new.run_id, now=means.clock.now()),
        )
        lacking = await prepared(means.gate, agent, run.reins)
        tools, rules = means.gate.offered(agent), means.rules()
        soul, template = means.souls.of(agent.id), means.souls.template_of(agent.id)
        *earlier, question = (Message("user", one.entry.new.content) for one in batch.asked)
        found, missing = await means.recollection.of(new, agent, episode)
        besides = Besides(episode.summary, found, missing, earlier, new.message_id, template)
        context = pack(agent, soul, episode.nodes, question, tools, besides=besides)
        batch.most_nodes = agent.context.max_nodes
        batch.crowds = agent if context.is_crowded else None
        plan = means.plans.of(agent.id)
        decision = means.decisions.chosen(agent.decision, plan.decision)
        if decision != agent.decision:
            agent = replace(agent, decision=decision)
        job = Job(
            agent=agent,
            plan=plan,
            context=context,
            tools=tools,
            scope=_scope_of(new, person),
            rules=RunRules(rules, only=agent.rules, kept=await self._kept(rules, key)),
            publish=means.bus.publish,
            hears=means.bus.hears,
            decode=means.decode,
            decision=means.decisions.named(decision),
            context_id=new.context_id,
            known=story.result,
            waiting=(*waiting, *map(notice_of, lacking)),
            price=means.price,
            was_near=await self._was_near(agent, context, episode),
        )
        driver = Driver(
            job=job,
            model=means.model,
            gate=means.gate,
            story=story,
            clock=means.clock,
            emit=run.emit,
            reins=run.reins,
            pace=means.pace,
        )
        run.progress = driver.progress
        await means.pace.begins(job, self._scene(agent, rules))
        try:
            return await driver.drive()
        finally:
            means.pace.ends()

    async def _was_near(self, agent: AgentDef, context: Context, episode: Episode) -> bool:
        """Whether the run before had come near the window's end, if this one begins there."""
        means, runs = self.means, self.means.runs
        if not episode.nodes or context.tokens < context_line(agent):
            return False
        before = episode.nodes[-1].run_id
        record = await until_stored(means.clock, lambda: runs.find(before))
        summary = means.decode(record.summary) if record and record.summary else {}
        match summary:
            case {"warned": list(warned)}:
                return CONTEXT in warned
            case _:
                return False

    async def _as_wished(self, batch: Batch, agent: AgentDef) -> AgentDef:
        """By whoever asks, for the session, and with the message itself."""
        means, new = self.means, batch.entry.new
        settings = await until_stored(means.clock, lambda: means.settings.of(person_of(new)))
        if batch.model is not None:
            settings = settings.patched({"oracle_model": batch.model})
        return as_wished(agent, settings, new.limits)

    def _scene(self, agent: AgentDef, rules: RuleSet) -> dict[str, object]:
        """What decides over a run besides what it is shown and told."""
        tree = {"name": agent.tree, "text": self.means.plans.digest(agent.id)}
        limits = {name: getattr(agent.limits, name) for name in LIMITS}
        decision, rules_ = agent.decision, dict(rules.digests)
        return {"limits": limits, "tree": tree, "decision": decision, "rules": rules_}

    async def _kept(self, rules: RuleSet, key: SessionKey) -> Mapping[str, object]:
        means = self.means
        kept: object = None
        if rules.keeps_state:
            text = await until_stored(means.clock, lambda: means.rule_states.of(key))
            kept = means.decode(text) if text else None
        return kept if isinstance(kept, dict) else {}

    async def _commit(
        self, batch: Batch, episode: Episode, end: End, tape: Callable[[], bytes]
    ) -> None:
        means, entry, run = self.means, batch.entry, batch.run
        new = entry.new
        log_bytes = run.seal(end.terminal)
        run.state = "ended"
        summary = {**run.summary(means.clock), "termination_reason": end.outcome}
        ending = Ending(
            run_id=new.run_id,
            session_key=new.session_key,
            state="dead" if _is_poison(entry, run) else "done",
            outcome=end.outcome,
            nodes=end.nodes,
            grown_from=episode.head,
            take_head=new.context_id is not None and episode.head is not None,
            log=log_bytes,
            summary=means.encode(summary).decode(),
            finished_at=means.clock.now(),
            deliveries=self._deliveries(entry, end),
            tape=tape,
            person=person_of(new),
            posts=end.posts,
            leaves_claimed=not end.has_told,
            rule_state=means.encode(dict(end.kept)).decode() if end.kept is not None else None,
            merged=tuple(self._merged(one, run, end) for one in batch.merged),
            most_nodes=batch.most_nodes,
        )
        moved = await until_stored(means.clock, lambda: means.inbox.finish(ending))
        means.said(new.session_key)
        agent = means.agents.get(new.session_key.agent)
        if moved and agent is not None:
            means.episodes.append(new.session_key, episode, end.nodes, agent.context)
        else:
            means.episodes.forget(new.session_key)

    def _merged(self, one: Waiting, into: LiveRun, end: End) -> Merged:
        means, its = self.means, one.run
        its.start(max(1, one.entry.attempts), means.clock.now(), means.clock.monotonic())
        log_bytes = its.seal(merged(into.run_id, end.nodes[-1].id, self._timing(its)))
        its.state = "ended"
        ended = {"termination_reason": "merged", "merged_into": into.run_id}
        summary = means.encode({**its.summary(means.clock), **ended}).decode()
        return Merged(its.run_id, log_bytes, summary)

    def _deliveries(self, entry: Entry, end: End) -> tuple[NewDelivery, ...]:
        new, key = entry.new, entry.new.session_key
        if key.channel not in self.means.channels and new.whence is None:
            return ()  # what came by a channel that is gone is kept for the operator
        place = (key.channel, key.account, *new.whither)
        delivery = NewDelivery(f"d_{new.message_id}", *place, end.text, new.whence)
        return (delivery,)


def _scope_of(new: NewEntry, person: str) -> ToolScope:
    said_by = new.sender or new.session_key.peer
    asked = Source(new.message_id, new.session_key, new.accepted_at, new.content, said_by)
    return ToolScope(new.session_key, new.run_id, person, asked=asked)


def _said(batch: Batch) -> Sequence[Said]:
    news = [one.entry.new for one in (*batch.asked, *batch.taken)]
    return [
        Said(NodeId(new.message_id), new.run_id, new.sender, new.content, new.accepted_at)
        for new in news
    ]


def _asked(batch: Batch) -> Asked:
    return Asked([one.entry for one in batch.asked], [one.entry for one in batch.taken])


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
