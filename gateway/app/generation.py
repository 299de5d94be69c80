"""Builds a generation, the immutable values of a configuration, without opening anything; and takes snapshots of its
files."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from gateway.agent.leaves import SHIPPED, Plans
from gateway.config.access import closed_agents, reachable_scopes
from gateway.config.problems import KeyPath, dotted
from gateway.config.values import GatewayConfig, RuleFolder
from gateway.control.policy import (
    DECISION_TREES,
    AgentConfig,
    DecisionTree,
    DecisionTrees,
    MakeDecisionTree,
    add_built_in,
)
from gateway.control.rules import RuleSet, load_rules
from gateway.domain.agents import AgentDef
from gateway.domain.errors import GatewayError, NotInstalled
from gateway.domain.ids import AgentId
from gateway.domain.ports import Clock
from gateway.domain.sessions import Choosable
from gateway.host.files import Digests, FileTexts, Stamps, digests_of, shipped_folder, stamps_of
from gateway.memory.souls import Souls
from gateway.providers.prices import PriceTable, why_no_thinking
from gateway.routing import Router
from gateway.sessions.intake import QueueBounds
from gateway.sessions.lanes import QueuePolicy
from gateway.web.settings import TokenDef, WebSettings


class DecisionTreeBroken(GatewayError):
    """The package of a decision tree that an agent names cannot be imported."""

    code = "decision_tree_broken"


@dataclass(frozen=True, slots=True)
class Generation:
    """All values that depend on the configuration. Store, lanes, live runs, counters and sockets belong to no generation:
    several generations can share them. `sharing` has the agents whose facts are shared by all people."""

    config: GatewayConfig
    agents: Mapping[AgentId, AgentDef]
    router: Router
    bounds: QueueBounds
    queueing: QueuePolicy
    decisions: DecisionTrees
    rules: RuleSet
    prices: PriceTable
    choosable: Choosable
    sharing: Set[AgentId]


def build(config: GatewayConfig) -> Generation:
    """Builds a generation, and imports the packages of decision trees that agents name. Raises DecisionTreeBroken,
    NotInstalled, RulesInvalid."""
    if (config.mcp.servers or config.mcp.serve.is_enabled) and find_spec("mcp") is None:
        raise NotInstalled("[mcp]", "mcp")
    agents = {agent.id: agent for agent in config.agents}
    queue, closed = config.queue, closed_agents(config)
    return Generation(
        config=config,
        agents=agents,
        router=Router(tuple(agents), config.bindings, config.default_agent, closed=closed),
        bounds=QueueBounds(
            queue.max_pending,
            queue.max_pending_total,
            queue.max_pending_mb,
            queue.max_pending_total_mb,
            queue.max_pending_per_principal,
        ),
        queueing=QueuePolicy(queue.mode, queue.debounce_ms / 1000),
        decisions=decision_trees({agent.decision for agent in config.agents}),
        rules=rule_set(config, config.rule_folder),
        prices=PriceTable(config.providers),
        choosable=choosable(config),
        sharing={one.id for one in config.agents if one.context.fact_scope == "agent"},
    )


def with_subagents(config: GatewayConfig) -> Sequence[AgentDef]:
    """Returns the agents, and the subagents as agents; a subagent inherits missing values from its caller."""
    helpers = (
        AgentDef(AgentId(one.name), "", "", soul_path=one.prompt_path) for one in config.subagents
    )
    return (*config.agents, *helpers)


def soul_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """Maps each agent to its soul file: its own, or the one that ships with the gateway."""
    shipped = str(shipped_folder("souls") / "default.md")
    return {agent.id: agent.soul_path or shipped for agent in agents}


def tree_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """Maps each agent to its tree file: the operator's own, or one that ships with the gateway."""
    return {
        agent.id: agent.tree if agent.tree.endswith(".bt") else str(SHIPPED / f"{agent.tree}.bt")
        for agent in agents
    }


def souls_and_plans(
    config: GatewayConfig, decisions: DecisionTrees, clock: Clock
) -> tuple[Souls, Plans]:
    """Returns the souls and trees of a configuration, whose files are not read yet."""
    everyone = with_subagents(config)
    templates = {one.id: one.prompt_template for one in config.agents if one.prompt_template}
    souls = Souls(FileTexts(), soul_paths(everyone), clock=clock, templates=templates)
    return souls, Plans(FileTexts(), tree_paths(everyone), decisions=decisions)


def agent_places(config: GatewayConfig) -> Iterator[tuple[KeyPath, AgentDef]]:
    """Yields every agent with its place in the file."""
    first = int(config.default_agent is not None)
    for index, agent in enumerate(config.agents):
        yield (("agent",) if index < first else ("agents", index - first)), agent


def decision_trees(wanted: Set[str]) -> DecisionTrees:
    """Returns the decision trees of installed packages. Imports the `wanted` ones now, and the others when a tree asks for
    one. Raises DecisionTreeBroken."""

    def make(point: EntryPoint, config: AgentConfig) -> DecisionTree:
        return _load(point)(config)

    found = entry_points(group=DECISION_TREES)
    for point in found:
        if point.name in wanted:
            _load(point)
    return add_built_in({point.name: partial(make, point) for point in found})


def _load(point: EntryPoint) -> MakeDecisionTree:
    try:
        return cast(MakeDecisionTree, point.load())
    except Exception as error:  # the import of a package may raise anything
        raise DecisionTreeBroken(
            f"the decision tree {point.name} cannot be loaded from {point.value} ({error!r}); "
            'correct its package, or set decision = "default" for its agents'
        ) from error


def rule_set(config: GatewayConfig, folder: RuleFolder | None) -> RuleSet:
    """Loads the rules of the configuration and of the folder. Raises RulesInvalid."""
    found, refused = (folder.rules, folder.refused) if folder else ((), ())
    return load_rules((*config.rules, *found), refused)


def default_agent(config: GatewayConfig) -> AgentDef:
    """Returns the default agent, else the first, else an empty one."""
    default = [agent for agent in config.agents if agent.id == config.default_agent]
    return next(iter((*default, *config.agents)), AgentDef(AgentId("main"), "", ""))


def choosable(config: GatewayConfig) -> Choosable:
    """Returns the settings that users may choose."""

    def no_thinking(agent: AgentDef) -> str | None:
        provider = config.providers.get(agent.provider)
        wire = provider.wire if provider else None
        return why_no_thinking(agent.provider, wire, agent.model, agent.max_tokens)

    return Choosable(default_agent(config), config.agents, config.subagents, no_thinking)


def web_settings(config: GatewayConfig, operator_key: str) -> WebSettings:
    """Returns the settings of the front door: address, bounds and tokens."""
    settings = config.gateway
    tokens = tuple(
        TokenDef(
            token.name,
            token.token.reveal(),
            reachable_scopes(config, token.name, token.scopes),
            token.expires,
        )
        for token in config.tokens
    )
    return WebSettings(
        bind=settings.bind,
        port=settings.port,
        tokens=tokens,
        operator_secret=settings.token.reveal() if settings.token else None,
        cli_secret=operator_key,
        reach=partial(reachable_scopes, config),
        allowed_origins=settings.allowed_origins,
        trusted_proxies=settings.trusted_proxies,
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_address,
        max_unauthenticated=settings.max_unauthenticated,
        max_frame_bytes=settings.max_frame_bytes,
        max_body_bytes=settings.max_body_bytes,
    )


# -- the files


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """The files of a configuration at one moment; `keys` has the key that names each file."""

    stamps: Stamps
    digests: Digests
    keys: Mapping[str, KeyPath]


def snapshot_files(config: GatewayConfig, before: FileSnapshot | None = None) -> FileSnapshot:
    """Takes a snapshot. Files of `before`, which was taken before the configuration was read, keep that state, so that no
    write in between is lost. It blocks."""
    stamps, keys = stamps_of(files_of(config)), dict[str, KeyPath]()
    for place, path in file_places(config):
        keys.setdefault(path, place)
    digests = digests_of(stamps if before is None else stamps.keys() - before.digests.keys())
    if before is not None:
        digests = {path: before.digests.get(path) or digests.get(path, "") for path in stamps}
        stamps = {path: before.stamps.get(path, stamp) for path, stamp in stamps.items()}
    return FileSnapshot(stamps, digests, keys)


def files_changed(config: GatewayConfig, before: FileSnapshot, now: FileSnapshot) -> Iterator[str]:
    """Yields the keys of `config` whose files have changed."""
    for text, place in now.keys.items():
        path = Path(text)
        if path in before.digests and before.digests[path] != now.digests.get(path):
            yield dotted(_named(config, place))


def _named(config: GatewayConfig, place: KeyPath) -> KeyPath:
    """Replaces the number of an item by its name."""
    kind, number, *rest = place
    if not isinstance(number, int):
        return place
    if kind == "agents":
        return (kind, config.agents[number + (config.agent is not None)].id, *rest)
    items = config.subagents if kind == "subagents" else config.plugins
    return (kind, items[number].name, *rest)


def file_places(config: GatewayConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yields the key and the file of each text and plugin."""
    yield from text_places(config)
    for index, one in enumerate(config.plugins):
        yield ("plugins", index, "path"), str(one.path)


def text_places(config: GatewayConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yields the key and the file of each soul, tree, template and prompt."""
    for place, agent in agent_places(config):
        yield (*place, "soul_path"), soul_paths([agent])[agent.id]
        yield (*place, "tree"), tree_paths([agent])[agent.id]
        if agent.prompt_template:
            yield (*place, "prompt_template"), agent.prompt_template
    for index, one in enumerate(with_subagents(config)[len(config.agents) :]):
        yield ("subagents", index, "prompt_path"), soul_paths([one])[one.id]


def files_of(config: GatewayConfig) -> Iterator[Path]:
    """Yields the configuration file, every file that it names, and the present files of its folders."""
    folder = config.rule_folder
    paths = (
        *((config.origin,) if config.origin else ()),
        *(Path(path) for _, path in file_places(config)),
        *((folder.path,) if folder else ()),
        *config.other_files,
    )
    for path in dict.fromkeys(paths):
        yield path
        if path.is_dir():
            yield from path.iterdir()
