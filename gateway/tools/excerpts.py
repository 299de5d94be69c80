"""Results that are too large for a model's window: the model sees both ends, the store keeps the
whole."""

import logging
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from gateway.domain.agents import RESULT, AgentDef, Original
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.messages import BYTES_A_TOKEN, Excerpt, ToolResult, estimate_tokens
from gateway.domain.ports import Clock, ToolScope, ToolStore

log = logging.getLogger(__name__)

MOST_RESULT = 262_144  # characters of a result in a conversation; docs/protocol.md tells it
MOST_KEPT = 4_194_304  # and of the whole, for the tool `result`
RESULT_SHARE = 4  # one result takes at most so much of context.token_budget: one in
MARKER_TOKENS = 100  # for the marker and the boundary


@dataclass(frozen=True, slots=True)
class Excerpts:
    """Without `originals` nothing is kept, and the marker names no reference."""

    originals: ToolStore | None
    clock: Clock
    _to_forget: set[SessionKey] = field(default_factory=set)  # of runs of which nothing stays

    async def shown(self, agent: AgentDef, result: ToolResult, scope: ToolScope) -> ToolResult:
        """The result as the model sees it. The conversation keeps up to MOST_RESULT characters."""
        most = agent.context.token_budget // RESULT_SHARE
        if result.name == RESULT or estimate_tokens(result.content) <= most:
            return within(result, MOST_RESULT)
        content, size = result.content[:MOST_KEPT], len(result.content)
        reference = reference_of(scope.run_id, result.call_id)
        if not await self._is_kept(reference, replace(result, content=content), scope):
            reference = ""
        head, tail = ends_within(content, int((most - MARKER_TOKENS) * BYTES_A_TOKEN))
        excerpt = Excerpt(head, tail, size, reference)
        if size > MOST_RESULT:
            ends = Excerpt(MOST_RESULT // 2, MOST_RESULT // 2, size, reference)
            content = ends.of(content)
        return replace(result, content=content, excerpt=excerpt)

    async def _is_kept(self, reference: str, result: ToolResult, scope: ToolScope) -> bool:
        if self.originals is None:
            return False
        key, now = scope.session_key, self.clock.now()
        one = Original(reference, key, scope.run_id, result.name, result.content, now)
        try:
            await self.originals.keep_original(one)
        except StoreUnavailable as error:
            log.warning("a result is not kept", extra={"tool": result.name, "why": str(error)})
            return False
        if not scope.is_kept:
            self._to_forget.add(key)
        return True

    async def forget(self, key: SessionKey) -> None:
        """Deletes what was kept for a run that leaves nothing behind. Raises StoreUnavailable."""
        if self.originals is not None and key in self._to_forget:
            self._to_forget.discard(key)
            await self.originals.forget_originals(key)


def reference_of(run_id: RunId, call_id: str) -> str:
    """Derived from run and call, so that a second attempt finds it."""
    name = blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{run_id}/{name}"


def ends_within(content: str, most_bytes: int) -> tuple[int, int]:
    """Characters at the beginning and at the end that fit into `most_bytes`, three quarters of them
    at the beginning."""
    whole, quarter = content.encode("utf-8", "surrogatepass"), most_bytes // 4
    head = whole[: 3 * quarter].decode("utf-8", "ignore")
    tail = whole[len(whole) - quarter :].decode("utf-8", "ignore")
    return len(head), len(tail)


def within(result: ToolResult, most: int) -> ToolResult:
    """The first `most` characters, with a note if there are more."""
    content = result.content
    if len(content) <= most:
        return result
    told = f"[Cut: this is the beginning, {most} of {len(content)} characters. "
    cut = f"{content[:most]}\n{told}Ask for less, or for a part.]"
    return replace(result, content=cut)
