"""Who keeps facts, over the opened store and the metered model."""

from collections.abc import Mapping

from anyio.abc import TaskGroup
from pydantic_core import from_json, to_json

from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId
from gateway.domain.ports import Clock, Ids, Model, Stores
from gateway.memory.keeper import Keeper
from gateway.memory.keeping import Keeping


def keeper_of(
    stores: Stores,
    agents: Mapping[AgentId, AgentDef],
    model: Model,
    *,
    clock: Clock,
    ids: Ids,
    group: TaskGroup,
) -> Keeper:
    keeping = Keeping(
        agents=agents,
        facts=stores.facts,
        hearing=stores.hearing,
        model=model,
        clock=clock,
        ids=ids,
        encode=to_json,
        decode=from_json,
    )
    return Keeper(keeping, group)
