"""What keeping facts needs, and how claims become facts of whoever made them."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gateway.domain.agents import AgentDef, Extraction
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.domain.facts import Claim, Facts, Whose, scope_of, whose
from gateway.domain.hearing import Hearing
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.ports import Clock, Decode, Encode, Ids, Model
from gateway.domain.settling import in_order

LATELY = timedelta(days=400)
_SINCE = re.compile(r"\bsince\b|\bseit\b", re.IGNORECASE)

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
        claims = [one for claim in in_order(claims) for one in _affirmed(claim)]
        ids = [f"f_{self.ids.new()}" for _ in claims]
        try:
            await self.facts.add(scope, claims, ids=ids, now=self.clock.now())
        except StoreUnavailable:
            raise
        except GatewayError as error:
            log.warning("claims are no facts", extra={"why": str(error), "session": str(key)})


def _affirmed(claim: Claim) -> Iterator[Claim]:
    """Who says what became so lately, or since when it is so, says that it is so now: whatever was
    claimed in between, without a date of its own."""
    said = claim.source
    is_past = said and claim.functional and not claim.valid_to and claim.valid_from < said.at
    if said and is_past and (said.at - claim.valid_from < LATELY or _SINCE.search(said.quote)):
        yield replace(claim, valid_from=said.at)
    yield claim
