"""Runs for callers that keep their conversation themselves. The gateway keeps only the costs."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from secrets import token_bytes
from weakref import ref

import anyio
from anyio.abc import TaskGroup

from gateway.agent.driver import Assignment, RunJournal
from gateway.agent.effects import RunResult
from gateway.domain.agents import MEMORY, AgentDef, Template, speaker
from gateway.domain.errors import Busy, Conflict, GatewayError
from gateway.domain.figures import BOUND
from gateway.domain.ids import MessageId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Entry, NewEntry
from gateway.domain.messages import Message, Node, ToolResult
from gateway.domain.ports import Ids, ToolScope
from gateway.domain.sessions import with_settings
from gateway.domain.supervision import contain, result_of, retry_store
from gateway.memory.context import ContextExtras, message_tokens
from gateway.sessions.intake import with_boundary
from gateway.sessions.lanes import TurnBatch
from gateway.sessions.runs import LiveRun
from gateway.sessions.worker import DEFECT, LAST_WORDS_S, RunWorker, end_with, refused_end, trace_of

CHANNEL = "api"
MOST_KEPT, MOST_BYTES, KEPT_S = 1_000, 64 * 1024 * 1024, 600.0


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the caller's `instructions`, after the messages of `earlier`. The same `key` and
    `fingerprint` again mean the same question."""

    agent: AgentDef
    account: str
    text: str
    earlier: Sequence[Message] = ()
    instructions: str = ""
    temperature: float | None = None
    max_tokens: int | None = None  # only lowers the agent's
    key: str | None = None
    fingerprint: str = ""
    traceparent: str | None = None

    def shaped(self, agent: AgentDef) -> AgentDef:
        """Returns the agent with the caller's wishes for each reply."""
        most = agent.max_tokens
        return replace(
            agent,
            temperature=agent.temperature if self.temperature is None else self.temperature,
            max_tokens=most if self.max_tokens is None else min(most, self.max_tokens),
            fallback=agent.fallback and self.shaped(agent.fallback),
        )


@dataclass(slots=True)
class _Known:
    fingerprint: str
    run: LiveRun
    size: int = 0
    ended: float | None = None


@dataclass(slots=True)
class Answers:
    """Runs by account and idempotency key: the live ones, and the newest answered ones."""

    _known: dict[tuple[str, str], _Known] = field(default_factory=dict)

    def find(self, question: Question, now: float) -> LiveRun | None:
        """Returns the run of the same question. Raises Conflict for another question under its key."""
        self._forget_old(now)
        known = self._known.get((question.account, question.key or ""))
        if known is None:
            return None
        if known.fingerprint != question.fingerprint:
            raise Conflict("this Idempotency-Key was used with another request")
        return known.run

    def begin(self, question: Question, run: LiveRun) -> None:
        if question.key is not None:
            self._known[question.account, question.key] = _Known(question.fingerprint, run)

    def end(self, question: Question, now: float, *, is_answered: bool) -> None:
        """Keeps an answered run, and drops any other, so that the same question runs again."""
        place = (question.account, question.key or "")
        known = self._known.pop(place, None)
        if known is not None and is_answered:
            known.size, known.ended = sum(map(len, known.run.events)), now
            self._known[place] = known  # answered runs stand in the order of their ends

    def _forget_old(self, now: float) -> None:
        size = sum(one.size for one in self._known.values())
        for place, one in tuple(self._known.items()):
            if one.ended is None:
                continue
            is_full = len(self._known) > MOST_KEPT or size > MOST_BYTES
            if not is_full and now - one.ended < KEPT_S:
                return  # all others ended later
            del self._known[place]
            size -= one.size


class StatelessRuns:
    """Runs beside the lanes, in the given task group: at most `width` at a time, and one more for each
    account that has none. `forget` deletes the tool results of an ended run."""

    def __init__(
        self,
        worker: RunWorker,
        ids: Ids,
        group: TaskGroup,
        *,
        width: int,
        forget: Callable[[SessionKey], Awaitable[None]] | None = None,
    ) -> None:
        self._ids, self._group = ids, group
        self.renew(worker, width, forget)
        self._answers = Answers()
        self._working: dict[RunId, tuple[LiveRun, anyio.CancelScope]] = {}
        self._idle = anyio.Event()
        self._is_closed = False
        self._key = token_bytes(16)  # makes the boundaries around results of the callers' tools

    def renew(
        self,
        worker: RunWorker,
        width: int,
        forget: Callable[[SessionKey], Awaitable[None]] | None = None,
    ) -> None:
        """Replaces the parts of an older configuration for the next runs."""
        self._worker, self._width, self._forget = worker, width, forget

    def begin(self, question: Question) -> LiveRun:
        """Starts a run, which continues without listeners and cannot be found by its id. Raises Busy and
        Conflict."""
        clock = self._worker.clock
        known = self._answers.find(question, clock.monotonic()) if question.key else None
        if known is not None:
            return known
        if self._is_closed:
            raise Busy("the gateway is restarting; send it again in a moment")
        # An account without a run is always admitted, or one caller could keep out all others.
        accounts = {run.session_key.account for run, _ in self._working.values()}
        if len(self._working) >= self._width and question.account in accounts:
            raise Busy(f"{self._width} requests run already; send it again later")
        run_id = RunId(f"r_{self._ids.new()}")
        message_id = MessageId(f"m_{run_id.removeprefix('r_')}")
        session = SessionKey(question.agent.id, CHANNEL, question.account, run_id)
        moment = RunJournal(clock).moment()
        # `Answers` may keep the run, so the run does not hold its question.
        new = NewEntry(message_id, run_id, session, "", moment.wall)
        run = LiveRun(Entry(new, 1, "running", 1))
        run.trace = self._worker.trace(question.traceparent)
        run.start(1, moment)
        self._answers.begin(question, run)
        scope = anyio.CancelScope()
        self._working[run_id] = (run, scope)
        work = partial(self._work, run, question, scope)
        self._group.start_soon(contain, "a run of which nothing is kept", work)
        return run

    def cancel(self, run: LiveRun) -> None:
        """Cancels a live run, because its caller has gone."""
        if run.run_id in self._working:
            self._working[run.run_id][1].cancel()

    def close(self) -> None:
        """Refuses every question from now on with Busy."""
        self._is_closed = True

    async def wait_idle(self) -> None:
        """Waits until no run is live."""
        while self._working:
            self._idle = anyio.Event()
            await self._idle.wait()

    def abandon_all(self) -> None:
        """Cancels all runs because the gateway stops, and ends their listeners at once."""
        for run, scope in tuple(self._working.values()):
            run.publish(is_over=False)
            scope.cancel()

    async def _work(self, run: LiveRun, question: Question, scope: anyio.CancelScope) -> None:
        worker, journal, end = self._worker, RunJournal(self._worker.clock), None
        facts, batch, forget = {"run": run.run_id}, TurnBatch(run), self._forget
        worker.turns.at_work += 1
        BOUND.set(ref(run))
        try:
            with scope:
                drive = partial(self._drive, worker)
                result = await result_of("run_failed", facts, drive, run, question, journal)
                moment = journal.moment()
                if result is None:
                    end = refused_end(batch, None, "internal_error", DEFECT, moment)
                else:
                    end = end_with(batch, None, result, moment)
        finally:
            worker.turns.at_work -= 1
            del self._working[run.run_id]
            run.release()
            if end is not None:
                run.seal(end.terminal)
            run.publish(is_over=end is not None)
            if end is not None:
                worker.report(trace_of(run, end, journal))
                if end.result.end_event is not None:
                    worker.bus.publish(end.result.end_event)
            is_answered = end is not None and end.outcome not in {"failed", "timeout"}
            self._answers.end(question, worker.clock.monotonic(), is_answered=is_answered)
            if not self._working:
                self._idle.set()
            if forget is not None:  # else the results are deleted with old journals
                with anyio.move_on_after(LAST_WORDS_S, shield=True), suppress(GatewayError):
                    await forget(run.session_key)

    async def _drive(
        self, worker: RunWorker, run: LiveRun, question: Question, journal: RunJournal
    ) -> RunResult:
        person = speaker(CHANNEL, question.account, "")
        settings = await retry_store(worker.clock, worker.settings.of, person)
        agent = question.shaped(with_settings(question.agent, settings, {}))
        own, template = agent.system_prompt, worker.souls.templates.get(agent.id)
        if template is not None and "system_prompt" not in template.places:
            own, template = "", Template((*template.parts, ("\n\n", "system_prompt")))
        agent = replace(
            agent,
            system_prompt="\n\n".join(text for text in (own, question.instructions) if text),
            tools=tuple(tool for tool in agent.tools if tool != MEMORY),
        )
        assignment = Assignment(
            agent,
            Message("user", question.text),
            ToolScope(run.session_key, run.run_id, person, is_kept=False, trace=run.trace),
            soul=worker.souls.by_agent.get(agent.id),
            earlier=self._nodes(question.earlier, run),
            extras=ContextExtras(template=template),
        )
        return await worker.runner.answer(assignment, journal, run.emit, run.control)

    def _nodes(self, said: Sequence[Message], run: LiveRun) -> tuple[Node, ...]:
        """Returns the earlier messages as nodes of a conversation."""
        nodes: list[Node] = []
        for place, one in enumerate(said):
            message = with_boundary(one, self._boundary_of)
            parent, node_id = nodes[-1].id if nodes else None, NodeId(f"{run.run_id}.{place}")
            tokens = message_tokens(message)
            nodes.append(Node(node_id, parent, run.run_id, message, run.new.accepted_at, tokens))
        return tuple(nodes)

    def _boundary_of(self, result: ToolResult) -> str:
        """Derives the boundary of a result from its text and a secret key. The caller sends the result with
        every request, and the model has to see the same bytes each time."""
        text = f"{result.call_id}\0{result.content}".encode("utf-8", "surrogatepass")
        return blake2b(text, key=self._key, digest_size=8).hexdigest()
