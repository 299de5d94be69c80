"""What a question brings to mind, as a run asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.agents import AgentDef
from gateway.domain.facts import SUBJECT, Fact, Facts, Whose, whose
from gateway.domain.ids import SessionKey
from gateway.domain.messages import Node
from gateway.domain.recall import Recalled, RecallKind
from gateway.memory.recall import KINDS, Recall, Shown

LEAST = 10


@dataclass(frozen=True, slots=True)
class Remembrance:
    """Implements Remember over what is known and was said."""

    recall: Recall
    facts: Facts

    async def of(
        self,
        question: str,
        key: SessionKey,
        sender: str | None,
        agent: AgentDef,
        window: Sequence[Node],
        *,
        is_all: bool = False,
    ) -> tuple[Recalled, ...]:
        theirs = whose(key, sender, is_shared=agent.context.fact_scope == "agent")
        shown = Shown(window[0].id, window[-1].id) if window else Shown()
        most = agent.context.facts
        limit = max(LEAST, most)
        kinds: Sequence[RecallKind] = ("fact",) if is_all else KINDS
        found = await self.recall.of(question, key, theirs, kinds=kinds, limit=limit, shown=shown)
        facts = [one for one in found if one.fact][:most]
        turns = [one for one in found if not one.fact]
        return (*facts, *await self._besides(theirs, facts, most), *turns)

    async def _besides(
        self, theirs: Whose, facts: Sequence[Recalled], most: int
    ) -> Sequence[Recalled]:
        """Of whoever asks, if there is room: few say outright what they ask about."""
        if len(facts) >= most:
            return ()
        known = {one.id for one in facts}
        more = await self.facts.around(theirs, (SUBJECT,), limit=most)
        return [_of_the_person(one) for one in more if one.id not in known][: most - len(facts)]


def _of_the_person(fact: Fact) -> Recalled:
    text = f"{fact.subject} {fact.predicate} {fact.object}"
    why = "about the person"
    return Recalled("fact", fact.id, text, 0.0, why, fact.session_key, fact.learned_at, fact=fact)
