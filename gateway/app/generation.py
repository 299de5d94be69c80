"""What a configuration makes of the gateway: one immutable value, built without opening anything; and the files
that it is made of, as they were at one moment."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from gateway.agent.leaves import SHIPPED
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
from gateway.domain.sessions import Choosable
from gateway.host.files import Digests, Stamps, digests_of, shipped_folder, stamps_of
from gateway.providers.prices import PriceTable, why_no_thinking
from gateway.routing import Router
from gateway.sessions.intake import QueueBounds
from gateway.sessions.lanes import QueuePolicy
from gateway.web.settings import TokenDef, WebSettings


class DecisionTreeBroken(GatewayError):
    """An agent names one whose package fails."""

    code = "decision_tree_broken"


@dataclass(frozen=True, slots=True)
class Generation:
    """All that another configuration changes. Store, lanes, live runs, counters and sockets belong to
    no generation: several can be at work over the same ones. `souls`, `templates` and `trees` are the
    files of each agent; `sharing` names agents whose facts belong to all who talk to them."""

    config: GatewayConfig
    agents: Mapping[AgentId, AgentDef]
    router: Router
    bounds: QueueBounds
    queueing: QueuePolicy
    souls: Mapping[AgentId, str]
    templates: Mapping[AgentId, str]
    trees: Mapping[AgentId, str]
    decisions: DecisionTrees
    rules: RuleSet
    prices: PriceTable
    choosable: Choosable
    sharing: Set[AgentId]


def build(config: GatewayConfig) -> Generation:
    """Imports the packages of decision trees that agents name. Raises DecisionTreeBroken,
    NotInstalled, RulesInvalid."""
    if (config.mcp.servers or config.mcp.serve.is_enabled) and find_spec("mcp") is None:
        raise NotInstalled("[mcp]", "mcp")
    agents = {agent.id: agent for agent in config.agents}
    queue, everyone = config.queue, with_subagents(config)
    closed = closed_agents(config)
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
        souls=soul_paths(everyone),
        templates={one.id: one.prompt_template for one in config.agents if one.prompt_template},
        trees=tree_paths(everyone),
        decisions=decision_trees({agent.decision for agent in config.agents}),
        rules=rule_set(config, config.rule_folder),
        prices=PriceTable(config.providers),
        choosable=choosable(config),
        sharing={one.id for one in config.agents if one.context.fact_scope == "agent"},
    )


def with_subagents(config: GatewayConfig) -> Sequence[AgentDef]:
    """Everyone who has a prompt and a tree. A subagent inherits what it leaves open from its caller."""
    helpers = (
        AgentDef(AgentId(one.name), "", "", soul_path=one.prompt_path) for one in config.subagents
    )
    return (*config.agents, *helpers)


def soul_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """An agent's own soul, or the one that ships with the gateway."""
    shipped = str(shipped_folder("souls") / "default.md")
    return {agent.id: agent.soul_path or shipped for agent in agents}


def tree_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """A file of the operator's own, or a tree that ships with the gateway."""
    return {
        agent.id: agent.tree if agent.tree.endswith(".bt") else str(SHIPPED / f"{agent.tree}.bt")
        for agent in agents
    }


def agent_places(config: GatewayConfig) -> Iterator[tuple[KeyPath, AgentDef]]:
    """Every agent with its place in the file."""
    first = int(config.default_agent is not None)
    for index, agent in enumerate(config.agents):
        yield (("agent",) if index < first else ("agents", index - first)), agent


def decision_trees(wanted: Set[str]) -> DecisionTrees:
    """The decision trees of installed packages. Those with these names are imported now, the others
    once a tree asks for one. Raises DecisionTreeBroken."""

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
    except Exception as error:  # a package may fail in any way when it is imported
        raise DecisionTreeBroken(
            f"the decision tree {point.name} cannot be loaded from {point.value} ({error!r}); "
            'correct its package, or write decision = "default" for the agents that name it'
        ) from error


def rule_set(config: GatewayConfig, folder: RuleFolder | None) -> RuleSet:
    """The rules of the file and of the folder. Raises RulesInvalid."""
    found, refused = (folder.rules, folder.refused) if folder else ((), ())
    return load_rules((*config.rules, *found), refused)


def usual_agent(config: GatewayConfig) -> AgentDef:
    """The default agent, or else the first; a configuration may have none at all."""
    usual = [agent for agent in config.agents if agent.id == config.default_agent]
    return next(iter((*usual, *config.agents)), AgentDef(AgentId("main"), "", ""))


def choosable(config: GatewayConfig) -> Choosable:
    """What users can set for themselves."""

    def no_thinking(agent: AgentDef) -> str | None:
        provider = config.providers.get(agent.provider)
        wire = provider.wire if provider else None
        return why_no_thinking(agent.provider, wire, agent.model, agent.max_tokens)

    return Choosable(usual_agent(config), config.agents, config.subagents, no_thinking)


def web_settings(config: GatewayConfig, operator_key: str) -> WebSettings:
    """Where the front door is, and who is let in."""
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
class Look:
    """`keys` name files in the configuration, as it has them; `names` as people call them."""

    stamps: Stamps
    digests: Digests
    keys: Mapping[str, KeyPath]
    names: Mapping[str, str]


def look_at(config: GatewayConfig, before: Look | None = None) -> Look:
    """What was looked at `before` it was read stays as it was seen then. It blocks."""
    stamps, keys = stamps_of(files_of(config)), dict[str, KeyPath]()
    for place, path in (*text_places(config), *plugin_places(config)):
        keys.setdefault(path, place)
    digests = digests_of(stamps if before is None else stamps.keys() - before.digests.keys())
    if before is not None:
        digests = {path: before.digests.get(path) or digests.get(path, "") for path in stamps}
        stamps = {path: before.stamps.get(path, stamp) for path, stamp in stamps.items()}
    names = {path: dotted(_named(config, place)) for path, place in keys.items()}
    return Look(stamps, digests, keys, names)


def files_changed(before: Look, now: Look) -> Iterator[str]:
    """The keys whose files have another content."""
    for text, name in now.names.items():
        path = Path(text)
        if path in before.digests and before.digests[path] != now.digests.get(path):
            yield name


def _named(config: GatewayConfig, place: KeyPath) -> KeyPath:
    """With the name of an item in place of its number."""
    kind, number, *rest = place
    if not isinstance(number, int):
        return place
    if kind == "agents":
        return (kind, config.agents[number + (config.agent is not None)].id, *rest)
    items = config.subagents if kind == "subagents" else config.plugins
    return (kind, items[number].name, *rest)


def plugin_places(config: GatewayConfig) -> Iterator[tuple[KeyPath, str]]:
    for index, one in enumerate(config.plugins):
        yield ("plugins", index, "path"), str(one.path)


def text_places(config: GatewayConfig) -> Iterator[tuple[KeyPath, str]]:
    """The key that names each text of an agent, and the file."""
    for place, agent in agent_places(config):
        yield (*place, "soul_path"), soul_paths([agent])[agent.id]
        yield (*place, "tree"), tree_paths([agent])[agent.id]
        if agent.prompt_template:
            yield (*place, "prompt_template"), agent.prompt_template
    for index, one in enumerate(with_subagents(config)[len(config.agents) :]):
        yield ("subagents", index, "prompt_path"), soul_paths([one])[one.id]


def files_of(config: GatewayConfig) -> Iterator[Path]:
    """Every file that the configuration is made of, with itself; of a folder also what is in it now."""
    folder = config.rule_folder
    paths = (
        *((config.origin,) if config.origin else ()),
        *(Path(path) for _, path in (*text_places(config), *plugin_places(config))),
        *((folder.path,) if folder else ()),
        *config.other_files,
    )
    for path in dict.fromkeys(paths):
        yield path
        if path.is_dir():
            yield from path.iterdir()
