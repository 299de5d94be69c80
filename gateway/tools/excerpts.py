"""Results that are too large for a model's window: it is shown begin and end, and the whole is kept."""

import logging
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from gateway.domain.agents import RESULT, AgentDef, Original, Originals
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.messages import BYTES_A_TOKEN, Excerpt, ToolResult, estimate_tokens
from gateway.domain.ports import Clock, ToolScope

log = logging.getLogger(__name__)

MOST_RESULT = 262_144  # characters of a result in a conversation; docs/protocol.md tells it
MOST_KEPT = 4_194_304  # and of the whole, for the tool `result`
RESULT_SHARE = 4  # one result takes at most so much of context.token_budget: one in
MARKER_TOKENS = 100  # for the marker and the boundary


@dataclass(frozen=True, slots=True)
class Excerpts:
    """`originals` None: nothing is kept, so the marker names nothing."""

    originals: Originals | None
    clock: Clock
    _to_forget: set[SessionKey] = field(default_factory=set)  # of runs of which nothing stays

    async def shown(self, agent: AgentDef, result: ToolResult, scope: ToolScope) -> ToolResult:
        """As a model is to be shown it. The conversation has all of it, up to a bound."""
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
            await self.originals.keep(one)
        except StoreUnavailable as error:
            log.warning("a result is not kept", extra={"tool": result.name, "why": str(error)})
            return False
        if not scope.is_kept:
            self._to_forget.add(key)
        return True

    async def forget(self, key: SessionKey) -> None:
        """What was kept for a run that is over and of which nothing stays. Raises StoreUnavailable."""
        if self.originals is not None and key in self._to_forget:
            self._to_forget.discard(key)
            await self.originals.forget(key)


def reference_of(run_id: RunId, call_id: str) -> str:
    """Follows from run and call, so that a second attempt finds it."""
    name = blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{run_id}/{name}"


def ends_within(content: str, most_bytes: int) -> tuple[int, int]:
    """Characters of its begin and its end that take so many bytes together, three of four at the
    begin: tokens are estimated by bytes."""
    whole, quarter = content.encode("utf-8", "surrogatepass"), most_bytes // 4
    head = whole[: 3 * quarter].decode("utf-8", "ignore")
    tail = whole[len(whole) - quarter :].decode("utf-8", "ignore")
    return len(head), len(tail)


def within(result: ToolResult, most: int) -> ToolResult:
    """Its beginning, if it has more characters than that."""
    content = result.content
    if len(content) <= most:
        return result
    told = f"[Cut: this is the beginning, {most} of {len(content)} characters. "
    cut = f"{content[:most]}\n{told}Ask for less, or for a part.]"
    return replace(result, content=cut)
