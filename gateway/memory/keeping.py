"""What keeping facts needs, and how claims become facts of whoever made them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.agents import AgentDef, Extraction
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.domain.facts import Claim, Facts, Whose, scope_of, whose
from gateway.domain.hearing import Hearing
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.ports import Clock, Decode, Encode, Ids, Model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeping:
    agents: Mapping[AgentId, AgentDef]
    facts: Facts
    hearing: Hearing
    model: Model
    clock: Clock
    ids: Ids
    encode: Encode
    decode: Decode

    def how(self, key: SessionKey) -> Extraction:
        agent = self.agents.get(key.agent)
        return agent.context.extraction if agent else "off"

    def whose(self, key: SessionKey, person: str | None) -> Whose:
        return whose(key, person, is_shared=self._is_shared(key))

    def _is_shared(self, key: SessionKey) -> bool:
        return self.agents[key.agent].context.fact_scope == "agent"

    async def keep(self, key: SessionKey, person: str | None, claims: Sequence[Claim]) -> None:
        """Raises StoreUnavailable. A claim that no fact can be made of is left out."""
        scope = scope_of(key, person, is_shared=self._is_shared(key))
        if not claims:
            return
        ids = [f"f_{self.ids.new()}" for _ in claims]
        try:
            await self.facts.add(scope, claims, ids=ids, now=self.clock.now())
        except StoreUnavailable:
            raise
        except GatewayError as error:
            log.warning("a claim is no fact", extra={"why": str(error), "session": str(key)})
            for one in claims if len(claims) > 1 else ():
                await self.keep(key, person, (one,))
