"""What a lane does with a message: start, drive the agent, end it in one commit, tell the end."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import ceil

import anyio

from gateway.agent.course import CONTEXT, context_line
from gateway.agent.driver import Driver
from gateway.agent.job import Answer, Gate, Job
from gateway.agent.pace import Pace
from gateway.agent.patience import until_stored
from gateway.agent.plans import Plans
from gateway.agent.preparing import prepared
from gateway.agent.sight import LIMITS
from gateway.agent.story import Json, Story
from gateway.control.bus import Bus
from gateway.control.notices import notice_of
from gateway.control.policy import DecisionTrees
from gateway.control.rules.engine import RuleSet, RunRules
from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.chunks import Chunk
from gateway.domain.errors import GatewayError, NotFound
from gateway.domain.facts import Source
from gateway.domain.hearing import Said
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Ending, Entry, Merged, NewDelivery, NewEntry
from gateway.domain.messages import Message
from gateway.domain.notices import NoticeBoard, RuleStates
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
from gateway.domain.settings import as_wished
from gateway.domain.supervision import survives
from gateway.domain.usage import Price, unpriced
from gateway.memory.context import Besides, Context, pack
from gateway.memory.episodes import Episode, Episodes
from gateway.memory.keeper import Keeper
from gateway.memory.souls import Souls
from gateway.sessions.endings import Asked, End, Timing, answered, merged, refused
from gateway.sessions.lines import Batch, Waiting
from gateway.sessions.remembering import Recollected, Recollection, TapedRecollection, person_of
from gateway.sessions.runs import LiveRun, LiveRuns
from gateway.sessions.settings import SettingsBook
from gateway.sessions.taping import (
    Recorder,
    TapedClock,
    TapedGate,
    TapedModel,
    TapedPace,
    TapedStore,
    to_be_packed,
)

log = logging.getLogger(__name__)

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
        batch.most_nodes, batch.crowds = (
            agent.context.max_nodes,
            agent if context.is_crowded else None,
        )
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
