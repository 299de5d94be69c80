"""Rules: compiles them, matches them with the events of a run, and produces acts."""

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway.control.expressions import (
    EVALUATION_ERRORS,
    MAX_NUMBER,
    Expression,
    ExpressionFailed,
    ExpressionInvalid,
    ExpressionScope,
    compile_expression,
)
from gateway.control.notices import EventTypeCache
from gateway.domain.errors import GatewayError
from gateway.domain.events import (
    KINDS,
    SEVERITIES,
    Action,
    Batching,
    Event,
    Notice,
    RefusedRules,
    RuleDef,
    RuleProblem,
    kind_named,
)
from gateway.domain.text import meant, quoted

# Action -> the name of its value in the act.
VALUES: Mapping[str, str] = {
    "log": "message",
    "interrupt": "why",
    "set_model": "model",
    "add_tool": "name",
    "remove_tool": "name",
}


@dataclass(frozen=True, slots=True)
class Act:
    """An act of a rule. Its kinds and values are those of VALUES, with a "level" for `log`; `notify`
    with "notice"; `emit_event` with "type", "payload" and "severity"; `set_state` with "key" and
    "value", which RunRules has already stored."""

    kind: str
    values: Mapping[str, Any]


MAX_VALUE = 2_000  # characters of one value; tools and people may send any length
MAX_TEMPLATE, MAX_RENDERED = 2_000, 8_000  # characters of a template and of its result
_PART = re.compile(r"\{\{|\}\}|\{([^{}|]*)(?:\|([^{}]*))?\}|[{}]")
_PATH = re.compile(r"[a-z]\w*(\.\w+)*", re.ASCII)
_FORMAT = re.compile(r",|,?d|,?(\.[0-9])?[f%]")


CORE = Path(__file__).with_name("core.toml")  # the rules that ship with the gateway
ROOTS = (
    *("event", "payload", "turn", "state", "limits", "usage", "context", "history"),
    *("user", "project", "plugin", "config"),
)
Render = Callable[[ExpressionScope], str]  # raises ExpressionFailed


def compile_path(text: str, at: int = 0) -> Expression:
    """Compiles a path that begins at index `at` of its text. Raises ExpressionInvalid."""
    if not _PATH.fullmatch(text):
        raise ExpressionInvalid("is not a path of a value such as payload.tool", at)
    try:
        return compile_expression(text, roots=ROOTS)
    except ExpressionInvalid as error:
        raise ExpressionInvalid(error.problem, at + error.column) from None


def compile_template(text: str) -> Render:
    """Compiles a text with paths of values in braces. Raises ExpressionInvalid."""
    if len(text) > MAX_TEMPLATE:
        raise ExpressionInvalid(f"is longer than {MAX_TEMPLATE} characters", 0)
    parts: list[TemplatePart] = []
    end = 0
    for found in _PART.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        name, spec = found.groups()
        if name is not None:
            path = compile_path(name, found.start(1))
            if spec is not None and not _FORMAT.fullmatch(spec):
                problem = "unknown format; write d, f, % or .1f, with or without a comma before it"
                raise ExpressionInvalid(problem, found.start(2))
            parts.append((path, spec))
        elif len(found[0]) == 2:
            parts.append(found[0][0])
        else:
            problem = "single brace; write {{ or }} for a brace"
            raise ExpressionInvalid(problem, found.start())
    return partial(_render, [*parts, text[end:]])


def compile_dedupe(text: str) -> Render:
    """Compiles paths with colons between them. Events with an equal result are repetitions. Raises
    ExpressionInvalid."""
    parts: list[TemplatePart] = []
    at = 0
    for part in text.split(":") if text else ():
        parts += [(compile_path("event.type" if part == "type" else part, at), None), "\n"]
        at += len(part) + 1
    return partial(_render, parts)


TemplatePart = str | tuple[Expression, str | None]  # a text, or a path and its format


def _render(parts: Sequence[TemplatePart], scope: ExpressionScope) -> str:
    """Raises ExpressionFailed."""
    texts = [part if isinstance(part, str) else _format(*part, scope) for part in parts]
    return _cut("".join(texts), MAX_RENDERED)


def _format(path: Expression, spec: str | None, scope: ExpressionScope) -> str:
    value = path.evaluate(scope)
    try:
        return _as_text(value) if spec is None else format(value, spec)
    except EVALUATION_ERRORS as error:
        raise ExpressionFailed(f"{path.text}|{spec or ''}: {error}") from error


def _as_text(value: object) -> str:
    """Formats a value for people; None gives ""."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return _cut("" if value is None else str(value), MAX_VALUE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


WAITS = ("after_tool", "after_turns", "not_before")
_GLOB = re.compile(r"[\w.*-]{1,100}", re.ASCII)
_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+){1,7}")

Make = Callable[[Event, ExpressionScope], Act]
Place = tuple[str | int, ...]
Compiled = Callable[[ExpressionScope], Any]


@dataclass(frozen=True, slots=True)
class CompiledRule:
    definition: RuleDef
    when: Compiled | None
    makers: tuple[Make, ...]

    def matches(self, event_type: str) -> bool:
        """True if the rule names this event type by its type, constant or hook."""
        kind = kind_named(event_type)
        names = (kind.type, kind.constant, kind.hook or "") if kind else (event_type,)
        return any(fnmatchcase(name, one) for one in self.definition.on for name in names)

    def is_severe_enough(self, event: Event) -> bool:
        least = SEVERITIES.index(self.definition.min_severity)
        return SEVERITIES.index(event.severity) >= least

    def acts(self, event: Event, scope: ExpressionScope) -> tuple[Act, ...]:
        """Raises ExpressionFailed."""
        return tuple(make(event, scope) for make in self.makers)


def compile_rule(definition: RuleDef) -> tuple[CompiledRule, tuple[RuleProblem, ...]]:
    """Compiles a rule. A rule with problems must not be used."""
    compiler = _Compiler(definition)
    for index, name in enumerate(definition.on):
        compiler.check_event(("on", index), name)
    if definition.is_core and not definition.is_enabled:
        compiler.report(("enabled",), "a core rule cannot be disabled", "leave enabled out")
    when = definition.when and compiler.read(("when",), definition.when, _evaluation)
    dedupe = compiler.read(("batch", "dedupe"), definition.batch.dedupe, compile_dedupe)
    makers: list[Make] = []
    for index, action in enumerate(definition.do):
        makers += compiler.makers(("do", index), action, dedupe)
    return CompiledRule(definition, when or None, tuple(makers)), tuple(compiler.problems)


def check_rule(definition: RuleDef) -> tuple[RuleProblem, ...]:
    return compile_rule(definition)[1]


def _evaluation(text: str) -> Compiled:
    return compile_expression(text, roots=ROOTS).evaluate


@dataclass(slots=True)
class _Compiler:
    """Compiles one rule and collects its problems."""

    rule: RuleDef
    problems: list[RuleProblem] = field(default_factory=list)

    def report(self, path: Place, message: str, fix: str, column: int | None = None) -> None:
        self.problems.append(RuleProblem(path, message, fix, column))

    def read(self, path: Place, text: str, compile_text: Callable[[str], Compiled]) -> Compiled:
        try:
            return compile_text(text)
        except ExpressionInvalid as error:
            fix = "correct it; docs/reference/rules.md describes expressions and templates"
            self.report(path, f"{quoted(text)}: {error.problem}", fix, error.column)
            return str  # never called, because a rule with a problem is not used

    def check_event(self, path: Place, name: str) -> None:
        if not _GLOB.fullmatch(name):
            fix = "write an event type; * matches any part of it"
            self.report(path, f"{quoted(name)} is not an event type", fix)
        elif "*" not in name and kind_named(name) is None:
            known = [one for kind in KINDS for one in (kind.type, kind.constant, kind.hook) if one]
            near = meant(name, known) or f"; events: {', '.join(kind.type for kind in KINDS)}"
            fix = f'"{name}*" also matches events of rules and trees'
            self.report(path, f'unknown event "{name}"{near}', fix)

    def makers(self, above: Place, action: Action, dedupe: Render) -> Sequence[Make]:
        kind, value, path = action.kind, action.value, (*above, action.kind)
        match kind:
            case "notify":
                return [self._notify(above, action, dedupe)]
            case "emit":
                return [self._emit(above, action)]
            case "set_state":
                assert isinstance(value, dict)
                return [self._set((*path, key), key, one) for key, one in value.items()]
        name, level = VALUES[kind], {"level": "info", **action.options} if kind == "log" else {}
        if kind in {"log", "interrupt"}:
            text = self.read(path, str(value), compile_template)
            return [lambda event, scope: Act(kind, {**level, name: text(scope)})]
        act = Act(kind, {name: value})
        return [lambda event, scope: act]

    def _notify(self, above: Place, action: Action, dedupe: Render) -> Make:
        options: dict[str, Any] = {**action.options}
        text = self.read((*above, "notify"), str(action.value), compile_template)
        waits = [name for name in WAITS if name in options]
        point = options.setdefault("inject_at", "deferred" if waits else "turn_start")
        if bool(waits) != (point == "deferred"):
            message = f'"{point}" ignores {waits[0]}' if waits else '"deferred" has no condition'
            fix = f'write inject_at = "deferred" with one of {", ".join(WAITS)}'
            self.report((*above, "inject_at"), message, fix)
        if "not_before" in options:
            options["when"] = options.pop("not_before")
            self.read((*above, "not_before"), str(options["when"]), _evaluation)
        batch, expires_s = self.rule.batch, options.pop("expires_s", None)
        options["batching"] = Batching(batch.window_ms / 1_000, batch.max, batch.dedupe_ms / 1_000)
        options["source"] = f"rule:{self.rule.id}"

        def make(event: Event, scope: ExpressionScope) -> Act:
            end = event.at + timedelta(seconds=expires_s) if expires_s else None
            same, content = dedupe(scope), text(scope)
            key = f"{above[-1]} {same}" if same else None  # each action has its own repetitions
            notice = Notice(content, **options, expires_at=end, dedupe_key=key, data=event.payload)
            return Act("notify", {"notice": notice})

        return make

    def _set(self, path: Place, key: str, value: object) -> Make:
        if not isinstance(value, str):
            return lambda event, scope: Act("set_state", {"key": key, "value": value})
        evaluate = self.read(path, value, _evaluation)

        def make(event: Event, scope: ExpressionScope) -> Act:
            return Act("set_state", {"key": key, "value": _storable(key, evaluate(scope))})

        return make

    def _emit(self, above: Place, action: Action) -> Make:
        event_type, given = str(action.value), action.options.get("payload", {})
        severity = action.options.get("severity", "info")
        assert isinstance(given, dict)
        if kind_named(event_type):
            message = f'"{event_type}" is an event of the gateway'
            self.report((*above, "emit"), message, "choose another name, such as house.quiet")
        elif not _TYPE.fullmatch(event_type):
            message = f"{quoted(event_type)} is not a valid event type"
            self.report((*above, "emit"), message, "write words with dots between: house.quiet")
        texts = {
            key: self.read((*above, "payload", key), one, compile_template)
            for key, one in given.items()
            if isinstance(one, str)
        }

        def make(event: Event, scope: ExpressionScope) -> Act:
            rendered = {key: text(scope) for key, text in texts.items()}
            values = {"type": event_type, "payload": {**given, **rendered}, "severity": severity}
            return Act("emit_event", values)

        return make


def _storable(key: str, value: object) -> object:
    """Returns the value if it can be stored with the session: a scalar of limited size. Raises
    ExpressionFailed."""
    if isinstance(value, str) and len(value) > MAX_VALUE:
        raise ExpressionFailed(
            f"{key}: a text of more than {MAX_VALUE} characters cannot be stored"
        )
    is_number = isinstance(value, int | float) and -MAX_NUMBER <= value <= MAX_NUMBER
    if not is_number and not isinstance(value, str | None):
        raise ExpressionFailed(f"{key}: a {type(value).__name__} like this cannot be stored")
    return value


log = logging.getLogger(__name__)

QUARANTINE_AT = 3  # errors since the gateway started
ONCE = "once:"  # prefix of a rule id among the stored keys; a key of set_state has no colon


class RulesInvalid(GatewayError):
    """At least one rule is invalid; the text names every problem with its place."""

    code = "rules_invalid"


@dataclass(slots=True)
class Faults:
    """The failures of a rule since the gateway started."""

    count: int = 0
    last: str = ""

    @property
    def is_quarantined(self) -> bool:
        return self.count >= QUARANTINE_AT


class RuleSet:
    """All rules in their firing order, with their failures in all runs."""

    def __init__(
        self, rules: Iterable[CompiledRule], refused: tuple[RefusedRules, ...] = ()
    ) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: -rule.definition.priority))
        self.refused = refused
        self.faults = {rule.definition.id: Faults() for rule in self.rules}
        self.by_event = EventTypeCache(self._matching)
        self.keeps_state = any(rule.definition.keeps_state for rule in self.rules)

    def _matching(self, event_type: str) -> tuple[CompiledRule, ...]:
        return tuple(rule for rule in self.rules if rule.matches(event_type))

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Maps rule ids to digests, which are equal for equal rules in any process and file."""
        found = {}
        for one in (rule.definition for rule in self.rules):
            text = json.dumps(replace(one, source=""), default=_plain, sort_keys=True)
            found[one.id] = blake2b(text.encode(), digest_size=8).hexdigest()
        return found

    def record_failure(self, rule: CompiledRule, error: ExpressionFailed) -> Act:
        """Counts a failure. Returns the act that emits `rule.error`."""
        rule_id = rule.definition.id
        faults = self.faults[rule_id]
        faults.count, faults.last = faults.count + 1, str(error)[:500]
        if faults.count == QUARANTINE_AT:
            log.warning("rule_quarantined", extra={"rule": rule_id, "why": faults.last})
        payload = {"rule": rule_id, "error": faults.last, "errors": faults.count}
        payload["quarantined"] = faults.is_quarantined
        values = {"type": "rule.error", "payload": payload, "severity": "error"}
        return Act("emit_event", values)

    def keep_faults(self, before: "RuleSet") -> None:
        """Keeps the failures of the rules that have not changed."""
        old = {rule.definition.id: rule.definition for rule in before.rules}
        for rule in self.rules:
            one = rule.definition
            if one.id in old and replace(old[one.id], source=one.source) == one:
                self.faults[one.id] = before.faults[one.id]


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(value) if isinstance(value, Set) else str(value)


def load_rules(definitions: Iterable[RuleDef], refused: tuple[RefusedRules, ...] = ()) -> RuleSet:
    """Compiles rules. Raises RulesInvalid with all problems."""
    found = [compile_rule(one) for one in definitions]
    lines = [
        f"{rule.definition.source}: rule {rule.definition.id}: {problem.message}; {problem.fix}"
        for rule, problems in found
        for problem in problems
    ]
    if lines:
        raise RulesInvalid("\n".join(lines))
    return RuleSet((rule for rule, _ in found), refused)


@dataclass(frozen=True, slots=True)
class _RuleScope:
    """The variables of one event; other names are looked up in the scope of the turn."""

    own: Mapping[str, object]
    outer: Mapping[str, object]

    def get(self, name: str, /) -> object:
        return self.own[name] if name in self.own else self.outer.get(name)


def rule_scope(
    event: Event, scope: Mapping[str, object], plugin: Mapping[str, object]
) -> ExpressionScope:
    """Returns the variables of the expressions and templates of a rule."""
    names = {
        "type": event.type,
        "severity": event.severity,
        "source": event.source,
        "at": event.at.isoformat(),
        "session_key": str(event.session_key or ""),
        "run_id": event.run_id or "",
    }
    return _RuleScope({"event": names, "payload": event.payload, "plugin": plugin}, scope)


class RunRules:
    """The rules of one run. `only`: the rule ids that its agent names; empty means all enabled rules.

    `kept`: the values that rules of this session have stored before."""

    def __init__(
        self,
        rules: RuleSet,
        *,
        only: Collection[str] = (),
        kept: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._rules, self._only, self.by_event = rules, frozenset(only), rules.by_event
        self._kept = dict(kept)
        self._fired: set[str] = set()
        self.kept: Mapping[str, object] | None = None  # the values to store; None: unchanged

    def on(self, event: Event, scope: Mapping[str, object]) -> tuple[Act, ...]:
        """Fires the rules for an event. Returns their acts in the order of rule priority."""
        rules = [one for one in self.by_event[event.type] if self._may_fire(one, event)]
        if not rules:
            return ()
        seen = rule_scope(event, scope, self._kept)
        return tuple(act for rule in rules for act in self._fire(rule, event, seen))

    def _may_fire(self, rule: CompiledRule, event: Event) -> bool:
        one = rule.definition
        is_on = one.is_core or (one.is_enabled and (not self._only or one.id in self._only))
        is_spent = (one.once_per == "run" and one.id in self._fired) or (
            one.once_per == "session" and ONCE + one.id in self._kept
        )
        is_sound = not self._rules.faults[one.id].is_quarantined
        return is_on and not is_spent and is_sound and rule.is_severe_enough(event)

    def _fire(self, rule: CompiledRule, event: Event, seen: ExpressionScope) -> Sequence[Act]:
        try:
            if rule.when and not rule.when(seen):
                return []
            acts = rule.acts(event, seen)
        except ExpressionFailed as error:
            return [self._rules.record_failure(rule, error)]
        self._fired.add(rule.definition.id)
        if rule.definition.once_per == "session":
            self._keep(ONCE + rule.definition.id, True)  # noqa: FBT003  # a stored value
        for act in acts:
            if act.kind == "set_state":
                self._keep(act.values["key"], act.values["value"])
        return acts

    def _keep(self, key: str, value: object) -> None:
        self._kept[key], self.kept = value, MappingProxyType(self._kept)
