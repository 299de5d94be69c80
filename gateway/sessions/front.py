"""What a front door may ask of the core."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.agent.plans import Plans
from gateway.domain.agents import AgentDef
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.inbox import RunRecord
from gateway.domain.messages import Node
from gateway.domain.ports import Clock, Runs, Sessions, Transcript
from gateway.memory.episodes import Episodes
from gateway.memory.souls import Souls
from gateway.routing import Router
from gateway.sessions.reception import Reception
from gateway.sessions.runs import LiveRun, LiveRuns
from gateway.sessions.upkeep import Upkeep

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Front:
    """Reads go straight to the store's ports; everything that changes something has a method."""

    agents: Mapping[AgentId, AgentDef]
    router: Router
    reception: Reception
    live: LiveRuns
    runs: Runs
    transcript: Transcript
    sessions: Sessions
    episodes: Episodes
    souls: Souls
    plans: Plans
    clock: Clock
    upkeep: Upkeep

    async def run(self, run_id: str) -> LiveRun | RunRecord:
        """A run, live or ended; raises NotFound."""
        live = self.live.find(run_id)
        if live is not None:
            return live
        record = await self.runs.find(RunId(run_id))
        # It may have been accepted, or have ended, while the store was asked.
        live = self.live.find(run_id)
        if live is not None:
            return live
        if record is None:
            raise NotFound(f"run {run_id[:64]!r}")
        return record

    def abort(self, run: LiveRun, *, at_once: bool) -> None:
        """Stops a run; one that is still waiting ends as soon as its turn comes, and one that a
        turn answers together with others stops that turn."""
        self.reception.lines.stop(run, at_once=at_once)

    async def node(self, key: SessionKey, node_id: str) -> Node:
        """A node of this session by id or label; raises NotFound."""
        node = await self.transcript.node(key, node_id)
        if node is None:
            raise NotFound(f"node {node_id[:64]!r}")
        return node

    async def move_head(self, key: SessionKey, node_id: str, *, label: str | None = None) -> NodeId:
        """The next message grows from that node. Raises NotFound, or Conflict when a message was
        answered meanwhile."""
        node = await self.node(key, node_id)
        record = await self.sessions.find(key)
        expected = record.head if record is not None else None
        moved = await self.transcript.move_head(key, node.id, expected=expected, label=label)
        if not moved:
            raise Conflict("HEAD has moved meanwhile; look at the session and try again")
        self.episodes.forget(key)
        return node.id
