"""Rules at work: events of a run go in, what is to be done comes out. Nothing here waits."""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from hashlib import blake2b
from types import MappingProxyType

from gateway.control.expressions import ExpressionFailed
from gateway.control.rules.acts import Act, Emit, SetState
from gateway.control.rules.compiling import Rule, compiled
from gateway.domain.errors import GatewayError
from gateway.domain.events import Event
from gateway.domain.rules import RefusedRules, RuleDef

log = logging.getLogger(__name__)

QUARANTINE_AT = 3  # errors, for as long as the gateway runs
MOST_REMEMBERED = 1_000  # of types of events
ONCE = "once:"  # in what is kept, before the id of a rule; no name of set_state has a colon


class RulesInvalid(GatewayError):
    """At least one of them must not be used; the text names every problem with its place."""

    code = "rules_invalid"


@dataclass(slots=True)
class Faults:
    """How often a rule failed since the gateway started."""

    count: int = 0
    last: str = ""

    @property
    def is_quarantined(self) -> bool:
        return self.count >= QUARANTINE_AT


class RuleSet:
    """Every rule in the order of firing, and how each of them fares in all runs together."""

    def __init__(self, rules: Iterable[Rule], refused: tuple[RefusedRules, ...] = ()) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: -rule.definition.priority))
        self.refused = refused
        self.faults = {rule.definition.id: Faults() for rule in self.rules}
        self._hearing: dict[str, tuple[Rule, ...]] = {}
        self.keeps_state = any(rule.definition.keeps_state for rule in self.rules)

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Of each rule by its id: another one for every other rule."""
        return {rule.definition.id: _digest(rule.definition) for rule in self.rules}

    def hearing(self, event_type: str) -> tuple[Rule, ...]:
        found = self._hearing.get(event_type)
        if found is None:
            found = tuple(rule for rule in self.rules if rule.hears(event_type))
            if len(self._hearing) < MOST_REMEMBERED:
                self._hearing[event_type] = found
        return found

    def failed(self, rule: Rule, error: ExpressionFailed) -> Emit:
        rule_id = rule.definition.id
        faults = self.faults[rule_id]
        faults.count, faults.last = faults.count + 1, str(error)[:500]
        if faults.count == QUARANTINE_AT:
            log.warning("a rule is quarantined", extra={"rule": rule_id, "why": faults.last})
        told = {"rule": rule_id, "error": faults.last, "errors": faults.count}
        return Emit("rule.error", {**told, "quarantined": faults.is_quarantined}, "error")

    def follow(self, before: "RuleSet") -> None:
        """Takes over how the rules fare that have not changed."""
        old = {rule.definition.id: rule.definition for rule in before.rules}
        for rule in self.rules:
            one = rule.definition
            if one.id in old and replace(old[one.id], source=one.source) == one:
                self.faults[one.id] = before.faults[one.id]


def _digest(definition: RuleDef) -> str:
    """The same in every process, wherever the rule stands."""
    text = json.dumps(replace(definition, source=""), default=_plain, sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(value) if isinstance(value, Set) else str(value)


def load_rules(definitions: Iterable[RuleDef], refused: tuple[RefusedRules, ...] = ()) -> RuleSet:
    """Raises RulesInvalid with every problem at once."""
    found = [compiled(one) for one in definitions]
    lines = [
        f"{rule.definition.source}: rule {rule.definition.id}: {problem.message}; {problem.fix}"
        for rule, problems in found
        for problem in problems
    ]
    if lines:
        raise RulesInvalid("\n".join(lines))
    return RuleSet((rule for rule, _ in found), refused)


@dataclass(frozen=True, slots=True)
class _View:
    """What is ours in front of what the turn knows."""

    own: Mapping[str, object]
    given: Mapping[str, object]

    def get(self, name: str, /) -> object:
        return self.own[name] if name in self.own else self.given.get(name)


def view(event: Event, scope: Mapping[str, object], plugin: Mapping[str, object]) -> _View:
    """What expressions and templates see."""
    told = {
        "type": event.type,
        "severity": event.severity,
        "source": event.source,
        "at": event.at.isoformat(),
        "session_key": str(event.session_key or ""),
        "run_id": event.run_id or "",
    }
    return _View({"event": told, "payload": event.payload, "plugin": plugin}, scope)


class RunRules:
    """The rules of one run. `only`: the ids that its agent names; none: every one that is enabled.

    `kept` is what rules of this session have set before, `changes` what they set in this run."""

    def __init__(
        self,
        rules: RuleSet,
        *,
        only: Collection[str] = (),
        kept: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._rules, self._only = rules, frozenset(only)
        self._kept = dict(kept)
        self._changes: dict[str, object] = {}
        self._fired: set[str] = set()

    @property
    def changes(self) -> Mapping[str, object]:
        return MappingProxyType(self._changes)

    @property
    def kept(self) -> Mapping[str, object] | None:
        """What is to be kept of the session from now on; None if nothing has changed."""
        return MappingProxyType(self._kept) if self._changes else None

    def on(self, event: Event, scope: Mapping[str, object]) -> tuple[Act, ...]:
        """What the rules want done, in order of their priority."""
        hearing = [one for one in self._rules.hearing(event.type) if self._may_fire(one, event)]
        if not hearing:
            return ()
        seen = view(event, scope, self._kept)
        return tuple(act for rule in hearing for act in self._asked(rule, event, seen))

    def _may_fire(self, rule: Rule, event: Event) -> bool:
        one = rule.definition
        is_on = one.is_core or (one.is_enabled and (not self._only or one.id in self._only))
        is_spent = (one.once_per == "run" and one.id in self._fired) or (
            one.once_per == "session" and ONCE + one.id in self._kept
        )
        is_sound = not self._rules.faults[one.id].is_quarantined
        return is_on and not is_spent and is_sound and rule.is_severe_enough(event)

    def _asked(self, rule: Rule, event: Event, seen: _View) -> Sequence[Act]:
        try:
            if not rule.holds(seen):
                return []
            acts = rule.acts(event, seen)
        except ExpressionFailed as error:
            return [self._rules.failed(rule, error)]
        self._fired.add(rule.definition.id)
        if rule.definition.once_per == "session":
            self._keep(ONCE + rule.definition.id, True)  # noqa: FBT003  # a value like any other
        for act in acts:
            if isinstance(act, SetState):
                self._keep(act.key, act.value)
        return acts

    def _keep(self, key: str, value: object) -> None:
        self._kept[key] = self._changes[key] = value
