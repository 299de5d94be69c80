"""Memory as a whole: it extracts facts, indexes what was said, and finds both."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from anyio.abc import TaskGroup

from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import PluginDef
from gateway.domain.ports import Stores, ToolStore
from gateway.memory.extraction import FactExtractor, Keeping
from gateway.memory.recall import Indexer, Recall, Vault, vault_of


@dataclass(frozen=True, slots=True)
class Memory:
    keeper: FactExtractor
    indexer: Indexer
    recall: Recall

    async def settled(self, key: SessionKey) -> None:
        """Returns once everything that was said there is kept and can be found."""
        await self.keeper.settled(key)
        await self.indexer.catch_up(key)

    def forget(self, key: SessionKey) -> None:
        """The conversation is erased."""
        self.keeper.last.pop(key, None)


def memory_of(stores: Stores, keeping: Keeping, group: TaskGroup) -> Memory:
    """Nothing is begun yet; extraction runs in the group."""
    indexer = Indexer(stores.facts, keeping.clock)
    return Memory(FactExtractor(keeping, group), indexer, Recall(stores.facts))


def vaults_of(
    agents: Iterable[AgentDef],
    offered: Callable[[AgentDef], Sequence[ToolSpec]],
    plugins: Sequence[PluginDef],
    store: ToolStore,
) -> Mapping[AgentId, Vault]:
    """Those of the agents that can read what the bundled notes plugin keeps."""
    named = {one.name: one for one in plugins}
    found = {one.id: vault_of(offered(one), named, store) for one in agents}
    return {agent: vault for agent, vault in found.items() if vault is not None}
