"""Has a conversation's older part summed up, beside its lane: no turn waits for it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import anyio

from gateway.domain.agents import AgentDef, share_of
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.errors import ModelFailed, StoreUnavailable
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node, estimate_tokens
from gateway.domain.model import ModelRequest
from gateway.domain.ports import Clock, Ids, Model, SessionStore
from gateway.domain.sessions import Summary
from gateway.domain.supervision import result_of
from gateway.memory.compaction import (
    INSTRUCTIONS,
    CoveredSpan,
    read_reply,
    request_text,
    shrinks,
    span_of,
    summary_message,
    summed_up,
)
from gateway.memory.context import allowance
from gateway.memory.window import PAGE, Episodes, message_tokens, not_covered, summary_of
from gateway.sessions.lanes import Lanes

log = logging.getLogger(__name__)

LONGEST_S = 90.0
MOST_TOKENS = 2_048  # of the reply
MOST_AT_ONCE = 8  # sessions
MOST_READ = 4  # times the allowance; a request has room for one
MOST_FAILURES = 2
GROWN = 1.5  # times what could not be summed up, before it is tried again
MOST_GIVEN_UP = 10_000  # sessions of which that is known

OnCompacted = Callable[[SessionKey, Sequence[Node]], None]


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be summed up; `head` was HEAD then."""

    key: SessionKey
    agent: AgentDef
    run_id: RunId  # after which: it pays
    head: NodeId | None
    earlier: Summary | None
    span: CoveredSpan


@dataclass(slots=True)
class Compaction:
    """`on_compacted` is told which messages a summary stands for now."""

    model: Model
    sessions: SessionStore
    episodes: Episodes
    lanes: Lanes
    clock: Clock
    ids: Ids
    on_compacted: OnCompacted = lambda key, nodes: None
    _at_work: set[SessionKey] = field(default_factory=set)
    _failures: dict[SessionKey, int] = field(default_factory=dict)
    _not_before: dict[SessionKey, float] = field(default_factory=dict)  # so many tokens

    def consider(self, key: SessionKey, agent: AgentDef, run_id: RunId) -> None:
        """A turn of this session had more to show than its rules want."""
        if key not in self._at_work and len(self._at_work) < MOST_AT_ONCE:
            self._at_work.add(key)
            self.lanes.beside(partial(self._compact, key, agent, run_id))

    async def _compact(self, key: SessionKey, agent: AgentDef, run_id: RunId) -> None:
        event, facts = "a conversation cannot be summed up", {"session": str(key)}
        outcome = await result_of(event, facts, self._submit_summary, key, agent, run_id)
        if outcome is None:
            self._give_up(key, inf)
        if outcome != "submitted":
            self._at_work.discard(key)

    async def _submit_summary(self, key: SessionKey, agent: AgentDef, run_id: RunId) -> str:
        """Says whether there is a summary for the lane to keep."""
        try:
            job = await self._job(key, agent, run_id)
            node = None if job is None else await self._summed_up(job)
        except StoreUnavailable as error:
            log.warning("a conversation is not summed up", extra={"why": str(error)})
            return "none"
        if job is None or node is None:
            return "none"
        self.lanes.submit(key, partial(self._keep, job, node), share_of(key, None))
        return "submitted"

    async def _job(self, key: SessionKey, agent: AgentDef, run_id: RunId) -> _Job | None:
        """None if there is nothing worth it, or not enough more than when it was given up."""
        path = page = await self.sessions.path(key, limit=PAGE)
        earlier = summary_of(path.summary)
        nodes, more = not_covered(path, earlier)
        most = MOST_READ * allowance(agent)
        while more and sum(node.token_count for node in nodes) < most:
            page = await self.sessions.path(key, before=page.nodes[0].id, limit=PAGE)
            older, more = not_covered(page, earlier)
            nodes = (*older, *nodes)
        span = span_of(nodes, allowance(agent))
        if span is None or span.covered.tokens < self._not_before.get(key, 0.0):
            return None
        return _Job(key, agent, run_id, path.head, earlier, span)

    async def _summed_up(self, job: _Job) -> Node | None:
        """A summary as a node, or None: then the latest exchanges have to do."""
        try:
            with anyio.fail_after(LONGEST_S):
                reply = await self.model.reply(_request(job), lambda _: None)
            summary = summed_up(read_reply(reply.text), job.earlier, job.span)
        except (ModelFailed, BudgetExceeded, TimeoutError, ValueError) as error:
            self._fail(job, str(error) or "it took too long", most=MOST_FAILURES)
            return None
        if not shrinks(summary, job.earlier, job.span):
            self._fail(job, "the summary is hardly shorter", most=1)
            return None
        self._failures.pop(job.key, None)
        self._not_before.pop(job.key, None)
        message, node_id = summary_message(summary), NodeId(f"s_{self.ids.new()}")
        tokens, now = message_tokens(message), self.clock.now()
        return Node(node_id, None, job.run_id, message, now, tokens, model=reply.model)

    def _fail(self, job: _Job, why: str, *, most: int) -> None:
        """Gives up after so many failures."""
        log.warning("a conversation is not summed up", extra={"session": str(job.key), "why": why})
        failures = self._failures[job.key] = self._failures.get(job.key, 0) + 1
        if failures >= most:
            self._give_up(job.key, job.span.covered.tokens)

    def _give_up(self, key: SessionKey, tokens: float) -> None:
        """Until there is half as much again."""
        self._not_before[key] = GROWN * tokens
        if len(self._not_before) > MOST_GIVEN_UP:
            oldest = next(iter(self._not_before))
            self._not_before.pop(oldest)
            self._failures.pop(oldest, None)

    async def _keep(self, job: _Job, node: Node) -> None:
        """In its lane, between two turns. If the conversation went on from elsewhere meanwhile, the
        summary stands for something else, and is dropped."""
        try:
            path = await self.sessions.path(job.key, limit=PAGE)
            if job.head not in {one.id for one in path.nodes}:
                return
            if await self.sessions.append_summary(job.key, node, expected=path.head):
                self.episodes.forget(job.key)
                covered = job.span.covered
                log.info("summed up", extra={"session": str(job.key), "nodes": len(covered)})
                self.on_compacted(job.key, covered)
        except StoreUnavailable as error:
            log.warning("a summary is not kept", extra={"why": str(error)})
        finally:
            self._at_work.discard(job.key)


def _request(job: _Job) -> ModelRequest:
    agent = job.agent
    room = allowance(agent) - estimate_tokens(INSTRUCTIONS)
    return ModelRequest(
        provider=agent.provider,
        model=agent.model,
        system=INSTRUCTIONS,
        messages=(Message("user", request_text(job.earlier, job.span, room)),),
        max_tokens=min(agent.max_tokens, MOST_TOKENS),
        temperature=agent.temperature,
        stream=agent.stream,
        deadline_s=LONGEST_S,
        payer=Payer(job.key, job.run_id),
    )
