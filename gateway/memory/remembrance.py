"""What a question brings to mind, as a run asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.agents import AgentDef
from gateway.domain.facts import whose
from gateway.domain.ids import SessionKey
from gateway.domain.messages import Node
from gateway.domain.recall import Recalled
from gateway.memory.recall import Recall, Shown

LEAST = 10


@dataclass(frozen=True, slots=True)
class Remembrance:
    """Implements Remember over what is known and was said."""

    recall: Recall

    async def of(
        self,
        question: str,
        key: SessionKey,
        sender: str | None,
        agent: AgentDef,
        window: Sequence[Node],
    ) -> tuple[Recalled, ...]:
        theirs = whose(key, sender, is_shared=agent.context.fact_scope == "agent")
        shown = Shown([node.id for node in window], window[-1].id if window else None)
        limit = max(LEAST, agent.context.facts)
        return await self.recall.of(question, key, theirs, limit=limit, shown=shown)
