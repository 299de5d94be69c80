"""An agent's character: the text that always comes first."""

from dataclasses import dataclass
from datetime import datetime

from gateway.domain.ids import AgentId


@dataclass(frozen=True, slots=True)
class Soul:
    agent_id: AgentId
    content: str
    token_count: int
    loaded_from: str
    loaded_at: datetime
