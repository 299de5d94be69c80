"""Memory as a whole: it extracts facts, indexes what was said, and finds both."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import PluginDef
from gateway.domain.ports import ToolStore
from gateway.memory.extraction import FactExtractor
from gateway.memory.recall import Indexer, Recall, Vault, vault_of


@dataclass(frozen=True, slots=True)
class Memory:
    extractor: FactExtractor
    indexer: Indexer
    recall: Recall

    async def settled(self, key: SessionKey) -> None:
        """Returns once everything that was said there is kept and can be found."""
        await self.extractor.settled(key)
        await self.indexer.catch_up(key)

    def forget(self, key: SessionKey) -> None:
        """The conversation is erased."""
        self.extractor.last.pop(key, None)


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
