"""The agents of a configuration: souls, trees, rules, decision trees, and their models behind the meter."""

import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from anyio import to_thread

from gateway.agent.leaves import SHIPPED
from gateway.config.rules import RuleReader
from gateway.config.values import GatewayConfig, RuleFolder
from gateway.control.policy import (
    DECISION_TREES,
    AgentConfig,
    DecisionTree,
    DecisionTrees,
    MakeDecisionTree,
)
from gateway.control.rules import RuleSet, load_rules, problems_of
from gateway.domain.agents import AgentDef
from gateway.domain.errors import GatewayError
from gateway.domain.ids import AgentId
from gateway.domain.ports import Clock, Model
from gateway.domain.sessions import Choosable
from gateway.host.shipped import shipped_folder
from gateway.providers.client import Models
from gateway.providers.demo import DemoModel
from gateway.providers.prices import why_no_thinking


class DecisionTreeBroken(GatewayError):
    """An agent names one whose package fails."""

    code = "decision_tree_broken"


def decision_trees(wanted: Set[str]) -> DecisionTrees:
    """Those with these names are imported now, the others once a tree asks for one.

    Raises DecisionTreeBroken."""
    found = entry_points(group=DECISION_TREES)
    for point in found:
        if point.name in wanted:
            _loaded(point)
    return DecisionTrees({point.name: partial(_made, point) for point in found})


def _made(point: EntryPoint, config: AgentConfig) -> DecisionTree:
    return _loaded(point)(config)


def _loaded(point: EntryPoint) -> MakeDecisionTree:
    try:
        return cast(MakeDecisionTree, point.load())
    except Exception as error:  # a package may fail in any way when it is imported
        raise DecisionTreeBroken(
            f"the decision tree {point.name} cannot be loaded from {point.value} ({error!r}); "
            'correct its package, or write decision = "default" for the agents that name it'
        ) from error


@asynccontextmanager
async def models(
    config: GatewayConfig, clock: Clock, metered: Callable[[Model], Model]
) -> AsyncIterator[Model]:
    """The providers that the configuration defines, and the demo model: each attempt is metered."""
    demo = metered(DemoModel())
    if not config.providers:
        yield Models({"demo": demo})
        return
    # The HTTP client takes as long to import as all the rest: a start without providers does without.
    from gateway.outbound.client import open_outbound  # noqa: PLC0415  # see above
    from gateway.providers.client import ProviderClient  # noqa: PLC0415  # see above

    async with open_outbound() as http:
        providers: dict[str, Model] = {
            name: ProviderClient(definition, http, clock, random.random, metered)
            for name, definition in config.providers.items()
        }
        providers.setdefault("demo", demo)
        yield Models(providers)


NO_AGENT = "agent:"  # a scope that limits to an agent that nobody can define


def tree_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """A file of the operator's own, or a tree that ships with the gateway."""
    return {
        agent.id: agent.tree if agent.tree.endswith(".bt") else str(SHIPPED / f"{agent.tree}.bt")
        for agent in agents
    }


def usual_agent(config: GatewayConfig) -> AgentDef:
    """The default agent, or else the first; a configuration may have none at all."""
    nobody = AgentDef(AgentId("main"), "", "")
    first = next(iter(config.agents), nobody)
    return next((agent for agent in config.agents if agent.id == config.default_agent), first)


def choosable(config: GatewayConfig) -> Choosable:
    """What users can set for themselves."""

    def no_thinking(agent: AgentDef) -> str | None:
        provider = config.providers.get(agent.provider)
        wire = provider.wire if provider else None
        return why_no_thinking(agent.provider, wire, agent.model, agent.max_tokens)

    return Choosable(usual_agent(config), config.agents, config.subagents, no_thinking)


def soul_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """An agent's own soul, or the one that ships with the gateway."""
    shipped = str(shipped_folder("souls") / "default.md")
    return {agent.id: agent.soul_path or shipped for agent in agents}


def template_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    return {agent.id: agent.prompt_template for agent in agents if agent.prompt_template}


def closed_agents(config: GatewayConfig) -> Mapping[AgentId, frozenset[str]]:
    """Agents of projects, and whom they answer."""
    users = {project.id: frozenset(project.users) for project in config.projects}
    return {agent.id: users[agent.project] for agent in config.agents if agent.project in users}


def reach(config: GatewayConfig, name: str, scopes: Iterable[str]) -> frozenset[str]:
    """The scopes of a token, narrowed to agents of its own projects: others do not exist for it.
    Whoever reads everything, or speaks for others, sees them nevertheless."""
    given, closed = frozenset(scopes), closed_agents(config)
    if given & {"admin", "read", "impersonate"} or all(name in users for users in closed.values()):
        return given
    mine = {agent.id for agent in config.agents if name in closed.get(agent.id, {name})}
    asked = {scope for scope in given if scope.startswith("agent:")}
    reached = {f"agent:{agent}" for agent in mine}
    return given - asked | ((asked & reached if asked else reached) or {NO_AGENT})


log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


def rule_set(config: GatewayConfig, folder: RuleFolder | None) -> RuleSet:
    if folder is None:
        return load_rules(config.rules)
    return load_rules((*config.rules, *folder.rules), folder.refused)


class Rulebook:
    """A run keeps the rules that it began with."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._taken = {rule.id: rule for rule in config.rules}
        self.current = rule_set(config, config.rule_folder)

    async def keep_fresh(self) -> None:
        """Reads the folder now, and whenever a file there is another; runs until cancelled."""
        folder = self._config.rule_folder
        before: object = None
        while folder:
            now = await to_thread.run_sync(_stamps, folder.path)
            if now != before:
                self._take(await to_thread.run_sync(self._read, folder.path))
            before = now
            await self._clock.sleep(LOOK_EVERY_S)

    def _read(self, path: Path) -> RuleFolder:
        return RuleReader(problems_of).folder(path, self._taken)

    def _take(self, folder: RuleFolder) -> None:
        fresh = rule_set(self._config, folder)
        fresh.follow(self.current)
        self.current = fresh
        for one in folder.refused:
            log.warning("a file of rules is refused", extra={"file": one.file, "why": one.why})
        log.info("rules are read", extra={"folder": str(folder.path), "rules": len(folder.rules)})


def _stamps(folder: Path) -> dict[Path, tuple[int, int, int]]:
    found = {}
    for path in folder.glob("*.toml"):
        try:
            stat = path.stat()
        except OSError:
            continue  # it went away just now
        found[path] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return found
