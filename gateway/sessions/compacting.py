"""Summarizes the older part of a conversation beside its lane, so that no turn waits for it."""

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
from gateway.domain.sessions import Path, Summary
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
from gateway.memory.context import (
    PAGE,
    Episodes,
    allowance,
    message_tokens,
    not_covered,
    summary_of,
)
from gateway.sessions.lanes import Lanes

log = logging.getLogger(__name__)

LONGEST_S = 90.0
MOST_TOKENS = 2_048  # of the reply
MOST_AT_ONCE = 8  # sessions
MOST_READ = 4  # times the allowance; a request has room for one
MOST_FAILURES = 2
GROWN = 1.5  # growth of a span that could not be summarized, before the next try
MOST_DEFERRED = 10_000  # sessions

OnCompacted = Callable[[SessionKey, Sequence[Node]], None]


@dataclass(slots=True)
class Compaction:
    """Summarizes sessions. `on_compacted` is called with the messages that a new summary covers."""

    model: Model
    sessions: SessionStore
    episodes: Episodes
    lanes: Lanes
    clock: Clock
    ids: Ids
    on_compacted: OnCompacted = lambda key, nodes: None
    _at_work: set[SessionKey] = field(default_factory=set)
    _failures: dict[SessionKey, int] = field(default_factory=dict)
    _not_before: dict[SessionKey, float] = field(default_factory=dict)  # tokens to reach first

    def consider(self, key: SessionKey, agent: AgentDef, run_id: RunId) -> None:
        """Starts a summary of a session whose history exceeds the agent's rules."""
        if key not in self._at_work and len(self._at_work) < MOST_AT_ONCE:
            self._at_work.add(key)
            self.lanes.beside(partial(self._compact, key, agent, run_id))

    async def _compact(self, key: SessionKey, agent: AgentDef, run_id: RunId) -> None:
        event, facts = "summary_broke", {"session": str(key)}
        is_submitted = await result_of(event, facts, self._submit_summary, key, agent, run_id)
        if is_submitted is None:
            self._defer(key, inf)
        if not is_submitted:
            self._at_work.discard(key)

    async def _submit_summary(self, key: SessionKey, agent: AgentDef, run_id: RunId) -> bool:
        """Asks a model for a summary, at the run's expense, and submits it to the lane. Returns False if
        the span is too short or has not grown enough since the last failure."""
        try:
            path, nodes = await self._read(key, MOST_READ * allowance(agent))
            earlier, span = summary_of(path.summary), span_of(nodes, allowance(agent))
            if span is None or span.covered.tokens < self._not_before.get(key, 0.0):
                return False
            try:
                with anyio.fail_after(LONGEST_S):
                    request = _request(agent, Payer(key, run_id), earlier, span)
                    reply = await self.model.reply(request, lambda _: None)
                summary = summed_up(read_reply(reply.text), earlier, span)
            except (ModelFailed, BudgetExceeded, TimeoutError, ValueError) as error:
                why = str(error) or "it took too long"
                self._fail(key, span, why, most=MOST_FAILURES)
                return False
        except StoreUnavailable as error:
            log.warning("summary_failed", extra={"why": str(error)})
            return False
        if not shrinks(summary, earlier, span):
            self._fail(key, span, "the summary is hardly shorter", most=1)
            return False
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        message, node_id = summary_message(summary), NodeId(f"s_{self.ids.new()}")
        tokens, now = message_tokens(message), self.clock.now()
        node = Node(node_id, None, run_id, message, now, tokens, model=reply.model)
        keep = partial(self._keep, key, node, path.head, span.covered)
        self.lanes.submit(key, keep, share_of(key, None))
        return True

    async def _read(self, key: SessionKey, most: int) -> tuple[Path, Sequence[Node]]:
        """Returns the current path, and its messages that no summary covers."""
        path = page = await self.sessions.path(key, limit=PAGE)
        earlier = summary_of(path.summary)
        nodes, more = not_covered(path, earlier)
        while more and sum(node.token_count for node in nodes) < most:
            page = await self.sessions.path(key, before=page.nodes[0].id, limit=PAGE)
            older, more = not_covered(page, earlier)
            nodes = (*older, *nodes)
        return path, nodes

    def _fail(self, key: SessionKey, span: CoveredSpan, why: str, *, most: int) -> None:
        """Counts a failure, and defers the session after `most` of them."""
        log.warning("summary_failed", extra={"session": str(key), "why": why})
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if failures >= most:
            self._defer(key, span.covered.tokens)

    def _defer(self, key: SessionKey, tokens: float) -> None:
        """Defers the session until the span has grown by half."""
        self._not_before[key] = GROWN * tokens
        if len(self._not_before) > MOST_DEFERRED:
            oldest = next(iter(self._not_before))
            self._not_before.pop(oldest)
            self._failures.pop(oldest, None)

    async def _keep(
        self, key: SessionKey, node: Node, head: NodeId | None, covered: Sequence[Node]
    ) -> None:
        """Commits the summary in the lane, between two turns. Drops it if HEAD has moved to another branch
        meanwhile."""
        try:
            path = await self.sessions.path(key, limit=PAGE)
            if head not in {one.id for one in path.nodes}:
                return
            if await self.sessions.append_summary(key, node, expected=path.head):
                self.episodes.forget(key)
                log.info("session_summarized", extra={"session": str(key), "nodes": len(covered)})
                self.on_compacted(key, covered)
        except StoreUnavailable as error:
            log.warning("summary_not_saved", extra={"why": str(error)})
        finally:
            self._at_work.discard(key)


def _request(
    agent: AgentDef, payer: Payer, earlier: Summary | None, span: CoveredSpan
) -> ModelRequest:
    room = allowance(agent) - estimate_tokens(INSTRUCTIONS)
    return ModelRequest(
        provider=agent.provider,
        model=agent.model,
        system=INSTRUCTIONS,
        messages=(Message("user", request_text(earlier, span, room)),),
        max_tokens=min(agent.max_tokens, MOST_TOKENS),
        temperature=agent.temperature,
        stream=agent.stream,
        deadline_s=LONGEST_S,
        payer=payer,
    )
