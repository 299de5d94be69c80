"""What remembers, over the opened store and the metered model."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from anyio.abc import TaskGroup
from pydantic_core import from_json, to_json

from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.ports import Clock, Ids, Model, PluginStore, Stores
from gateway.memory.episodes import Episodes
from gateway.memory.extraction import Keeper, Keeping
from gateway.memory.indexer import Indexer
from gateway.memory.recall import Recall, Remembrance, Vault, vault_of
from gateway.memory.tool import MemoryTool
from gateway.sessions.compacting import Compaction
from gateway.sessions.intake import Upkeep
from gateway.sessions.lanes import Lanes
from gateway.sessions.worker import Means, Recollected
from gateway.tools.gate import ToolGate
from gateway.web.methods.memory import MemoryMethods
from gateway.web.published.about import MemoryBacklog


@dataclass(frozen=True, slots=True)
class Memory:
    """Who keeps facts, who keeps what was said findable, who finds it, who sums it up."""

    keeper: Keeper
    indexer: Indexer
    recall: Recall
    remembrance: Remembrance
    compaction: Compaction
    vaults: Mapping[AgentId, Vault]

    def told_by(self, means: Means) -> Means:
        """The same means, for work that remembers and is remembered."""
        return replace(
            means,
            keeper=self.keeper,
            said=self.indexer.note,
            recollection=Recollected(self.remembrance, self.vaults),
            compact=self.compaction.consider,
        )

    async def settled(self, key: SessionKey) -> None:
        """Comes back once all that was said there is kept and can be found."""
        await self.keeper.settled(key)
        await self.indexer.catch_up(key)

    def forget(self, key: SessionKey) -> None:
        """What was said there is erased."""
        self.keeper.last.pop(key, None)

    def backlog(self) -> MemoryBacklog:
        """Sessions that wait to be looked at."""
        return {"backlog": self.keeper.backlog, "unindexed": self.indexer.backlog}


@dataclass(frozen=True, slots=True)
class Around:
    """What memory works with besides the store."""

    agents: Mapping[AgentId, AgentDef]
    model: Model
    episodes: Episodes
    lanes: Lanes
    clock: Clock
    ids: Ids
    group: TaskGroup


def memory_of(stores: Stores, around: Around, vaults: Mapping[AgentId, Vault]) -> Memory:
    keeping = Keeping(
        agents=around.agents,
        facts=stores.facts,
        hearing=stores.hearing,
        model=around.model,
        clock=around.clock,
        ids=around.ids,
        encode=to_json,
        decode=from_json,
    )
    keeper = Keeper(keeping, around.group)
    compaction = Compaction(
        around.model,
        stores.transcript,
        stores.summaries,
        around.episodes,
        around.lanes,
        around.clock,
        around.ids,
        on_compacted=keeper.on_compacted,
    )
    indexer = Indexer(stores.turn_index, around.clock)
    recall = Recall(stores.turns, stores.facts)
    remembrance = Remembrance(recall, stores.facts)
    return Memory(keeper, indexer, recall, remembrance, compaction, vaults)


def vaults_of(config: GatewayConfig, gate: ToolGate, store: PluginStore) -> Mapping[AgentId, Vault]:
    """Of the agents that can read what the bundled notes plugin keeps."""
    plugins = {plugin.name: plugin for plugin in config.plugins}
    found = {one.id: vault_of(gate.offered(one), plugins, store) for one in config.agents}
    return {agent: vault for agent, vault in found.items() if vault is not None}


def memory_tool(stores: Stores, agents: Sequence[AgentDef], clock: Clock, ids: Ids) -> MemoryTool:
    recall = Recall(stores.turns, stores.facts)
    return MemoryTool(stores.facts, recall, clock, ids, sharing(agents))


def memory_methods(
    memory: Memory, stores: Stores, agents: Sequence[AgentDef], ids: Ids, upkeep: Upkeep
) -> MemoryMethods:
    asked = (stores.facts, memory.recall, upkeep.clock, ids, memory.settled)
    return MemoryMethods(*asked, sharing(agents), upkeep)


def sharing(agents: Sequence[AgentDef]) -> Set[AgentId]:
    """Those whose facts belong to all who talk to them."""
    return {agent.id for agent in agents if agent.context.fact_scope == "agent"}
