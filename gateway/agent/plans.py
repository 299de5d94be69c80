"""The trees of the agents: read at start, used from the next run on when they change; a bad version
changes nothing."""

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path, PurePath

from gateway.agent.leaves import REGISTRY
from gateway.control.policy import DecisionTrees
from gateway.control.trees.loading import load
from gateway.control.trees.plan import TreePlan
from gateway.control.trees.problems import Source, TreeInvalid
from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.domain.ports import Texts

log = logging.getLogger(__name__)

NO_OTHERS = DecisionTrees()

SHIPPED = Path(__file__).parent / "trees"


Tell = Callable[[str, Mapping[str, object]], None]  # a type of event and its payload


def _nobody(_type: str, _payload: Mapping[str, object]) -> None:
    """Hears it."""


class Plans:
    """`paths`: the file of each agent's tree."""

    def __init__(
        self,
        texts: Texts,
        paths: Mapping[AgentId, str],
        tell: Tell = _nobody,
        *,
        decisions: DecisionTrees = NO_OTHERS,
    ) -> None:
        self._texts, self._paths, self._tell = texts, dict(paths), tell
        self._decisions = decisions
        self._plans: dict[str, TreePlan] = {}
        self._digests: dict[str, str] = {}
        self._problems: dict[str, str] = {}

    async def load(self) -> None:
        """Raises TreeInvalid, or SoulUnreadable, for the first that cannot be used."""
        for path in self._files:
            self._plans[path] = await self._read(path)

    def of(self, agent: AgentId) -> TreePlan:
        return self._plans[self._paths[agent]]

    def digest(self, agent: AgentId) -> str:
        """Another one for every other text."""
        return self._digests[self._paths[agent]]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a newer version of a tree is not in use."""
        return tuple(self._problems.values())

    async def keep_fresh(self) -> None:
        """Follows the files until cancelled."""
        await self._texts.watch(self._files, self.refresh)

    async def refresh(self, path: str) -> None:
        """Takes the new version; runs that are at work end under the one before."""
        try:
            plan = await self._read(path)
        except (SoulUnreadable, TreeInvalid) as error:
            self._problems[path] = f"{error}; the version before stays in use"
            log.warning("tree not reloaded", extra={"path": path, "why": str(error)})
            self._tell("tree.refused", {"path": path, "why": str(error)})
            return
        self._problems.pop(path, None)
        self._plans[path] = plan
        log.info("tree reloaded", extra={"path": path, "tree": plan.name})
        self._tell("tree.reloaded", {"path": path, "tree": plan.name})

    @property
    def _files(self) -> list[str]:
        return sorted(set(self._paths.values()))

    async def _read(self, path: str) -> TreePlan:
        text = await self._texts.read(path)
        plan = load(text, PurePath(path).name, REGISTRY)
        self._check_decision(plan, text)
        self._digests[path] = blake2b(text.encode(), digest_size=8).hexdigest()
        for warning in plan.warnings:
            log.warning("tree", extra={"why": warning.render()})
        return plan

    def _check_decision(self, plan: TreePlan, text: str) -> None:
        names = self._decisions.names
        if plan.decision is None or plan.decision in names:
            return
        source = Source(plan.file, text)
        message = f'no decision tree is called "{plan.decision}"; there are {", ".join(names)}'
        source.error("BT027", text.index(":decision", plan.at), message)
        raise TreeInvalid(source.problems())
