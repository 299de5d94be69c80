"""The core of one generation, over what all generations share: memory, work, and the front."""

from dataclasses import dataclass, replace
from typing import Any

from anyio.abc import TaskGroup
from pydantic_core import from_json, to_json

from gateway.agent.effects import Gate, Json
from gateway.agent.leaves import Plans
from gateway.agent.subagents import Aside, Delegating, Subagents
from gateway.app.background import Rulebook
from gateway.app.generation import Generation
from gateway.app.shared import Shared
from gateway.budgets.metering import Meter
from gateway.domain.ids import Secret
from gateway.domain.ports import Model
from gateway.memory.extraction import Keeping
from gateway.memory.room import Memory, memory_of, vaults_of
from gateway.memory.souls import Souls
from gateway.providers.client import Models, ProviderClient
from gateway.sandbox.plugins import Plugins
from gateway.sessions.compacting import Compaction
from gateway.sessions.intake import Front, Reception, Upkeep
from gateway.sessions.player import Reel
from gateway.sessions.replay import Replays
from gateway.sessions.stateless import Stateless
from gateway.sessions.worker import Means, Recollected, Work
from gateway.tools.gate import ToolGate


@dataclass(frozen=True, slots=True)
class Opened:
    """What a generation has opened for itself. Its tasks end with the group."""

    group: TaskGroup
    meter: Meter
    model: Model
    souls: Souls
    plans: Plans
    plugins: Plugins
    gate: ToolGate
    rules: Rulebook


@dataclass(frozen=True, slots=True)
class Core:
    front: Front
    memory: Memory
    replays: Replays
    stateless: Stateless


def wired(made: Generation, shared: Shared, opened: Opened) -> Core:
    """Nothing is begun yet."""
    stores, clock, ids = shared.stores, shared.clock, shared.ids
    memory = _memory(made, shared, opened)
    gate = _gate(made, shared, opened)
    means = _means(made, shared, opened, memory, gate)
    kept = opened.gate.excerpts if gate is opened.gate else stores.originals
    reception = Reception(
        router=made.router,
        inbox=stores.inbox,
        lanes=shared.lanes,
        runs=shared.live,
        work=Work(means, shared.live),
        clock=clock,
        ids=ids,
        bounds=made.bounds,
        manner=made.manner,
    )
    upkeep = Upkeep(
        stores.conversations,
        stores.erasures,
        stores.sessions,
        shared.episodes,
        clock,
        memory.indexer.note,
        memory.forget,
        reception.holding,
    )
    front = Front(
        agents=made.agents,
        router=made.router,
        reception=reception,
        live=shared.live,
        runs=stores.runs,
        transcript=stores.transcript,
        sessions=stores.sessions,
        episodes=shared.episodes,
        souls=opened.souls,
        plans=opened.plans,
        clock=clock,
        upkeep=upkeep,
    )
    width = made.config.queue.max_running
    return Core(
        front,
        memory,
        _replays(made, shared, means),
        Stateless(means, ids, opened.group, width=width, forget=kept.forget),
    )


def _memory(made: Generation, shared: Shared, opened: Opened) -> Memory:
    stores = shared.stores
    keeping = Keeping(
        agents=made.agents,
        facts=stores.facts,
        hearing=stores.hearing,
        model=opened.model,
        clock=shared.clock,
        ids=shared.ids,
        encode=to_json,
        decode=from_json,
    )
    return memory_of(stores, keeping, opened.group)


def _gate(made: Generation, shared: Shared, opened: Opened) -> Gate:
    """The gate of agents that people talk to; they have subagents as tools."""
    config, json = made.config, Json(to_json, from_json)
    aside = Aside(
        opened.model,
        opened.gate,
        opened.plans,
        made.decisions,
        opened.rules.now,
        shared.clock,
        from_json,
        shared.bus.publish,
        opened.meter.cost_usd,
    )
    known = {one.name: one for one in config.subagents}
    asked = (aside, opened.souls, shared.settings.of, shared.stores.journal, json)
    subagents = Subagents(known, *asked, made.agents)
    opened.gate.renew("", subagents.tools)
    if not config.delegation.is_enabled:
        return opened.gate
    return Delegating(opened.gate, subagents, config.delegation, shared.stores.originals, json)


def _means(made: Generation, shared: Shared, opened: Opened, memory: Memory, gate: Gate) -> Means:
    stores = shared.stores
    compaction = Compaction(
        opened.model,
        stores.transcript,
        stores.summaries,
        shared.episodes,
        shared.lanes,
        shared.clock,
        shared.ids,
        on_compacted=memory.keeper.on_compacted,
    )
    config = made.config
    vaults = vaults_of(config.agents, opened.gate.offered, config.plugins, stores.plugins)
    return Means(
        agents=made.agents,
        inbox=stores.inbox,
        journal=stores.journal,
        runs=stores.runs,
        episodes=shared.episodes,
        souls=opened.souls,
        model=opened.model,
        price=opened.meter.cost_usd,
        gate=gate,
        settings=shared.settings,
        clock=shared.clock,
        bus=shared.bus,
        encode=to_json,
        decode=from_json,
        plans=opened.plans,
        rules=opened.rules.now,
        rule_states=stores.rule_states,
        notices=stores.notices,
        decisions=made.decisions,
        channels=frozenset(one.name for one in config.channels),
        keeper=memory.keeper,
        said=memory.indexer.note,
        recollection=Recollected(memory.remembrance, vaults),
        compact=compaction.consider,
    )


def _replays(made: Generation, shared: Shared, means: Means) -> Replays:
    """Replays have the same clients, over what was recorded: without keys, addresses and waiting."""
    key = Secret("replayed")
    definitions = {name: replace(one, api_key=key) for name, one in made.config.providers.items()}

    def wired_to(reel: Reel) -> Model:
        clients = {
            name: ProviderClient(definition, reel, reel, reel.random, encoder=reel)
            for name, definition in definitions.items()
        }
        return Models(clients)

    providers = frozenset({*definitions, "demo"})
    return Replays(means, shared.stores.runs, shared.stores.transcript, wired_to, providers)


def strict_json(text: str | bytes) -> Any:
    """Without numbers like NaN: a guest's parser, or a provider's, refuses them."""
    return from_json(text, allow_inf_nan=False)
