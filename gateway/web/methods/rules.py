"""rule.list: the rules in force, and how they fare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.control.rules import RuleSet
from gateway.web.published.about import RuleList
from gateway.web.rpc import Call, Method, NoParams
from gateway.web.shapes import rules


@dataclass(frozen=True, slots=True)
class RuleMethods:
    current: Callable[[], RuleSet]

    def all(self) -> Sequence[Method]:
        return (Method("rule.list", NoParams, ("read",), self.list),)

    def list(self, call: Call, params: NoParams) -> RuleList:
        """The rules in force, and how they fare."""
        return rules(self.current())
