"""Rules: what happens in a run, and what is done about it."""

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
    CANNOT,
    LARGEST,
    Expression,
    ExpressionFailed,
    ExpressionInvalid,
    ExpressionScope,
    compile_expression,
)
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

# What rules want done, by the action: what the value of the action is called in the act.
VALUES: Mapping[str, str] = {
    "log": "message",
    "interrupt": "why",
    "set_model": "model",
    "add_tool": "name",
    "remove_tool": "name",
}


@dataclass(frozen=True, slots=True)
class Act:
    """What a rule wants done. Kinds and values: those of VALUES, and a "level" for `log`; `notify` with
    its "notice"; `emit_event` with "type", "payload" and "severity"; `set_state` with "key" and
    "value", which the rules of the run keep already."""

    kind: str
    values: Mapping[str, Any]


MOST = 2_000  # characters of one value: tools and people say whatever they like
MOST_TEMPLATE, MOST_RENDERED = 2_000, 8_000  # characters of a text, before and after
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
    """Raises ExpressionInvalid; `at` is where in its text it stands."""
    if not _PATH.fullmatch(text):
        raise ExpressionInvalid("here only the path of a value can stand, as in payload.tool", at)
    try:
        return compile_expression(text, roots=ROOTS)
    except ExpressionInvalid as error:
        raise ExpressionInvalid(error.problem, at + error.column) from None


def compile_template(text: str) -> Render:
    """A text with the paths of values in braces. Raises ExpressionInvalid."""
    if len(text) > MOST_TEMPLATE:
        raise ExpressionInvalid(f"is longer than {MOST_TEMPLATE} characters", 0)
    parts: list[TemplatePart] = []
    end = 0
    for found in _PART.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        name, spec = found.groups()
        if name is not None:
            path = compile_path(name, found.start(1))
            if spec is not None and not _FORMAT.fullmatch(spec):
                problem = "no such format; there are d, f, % and the like of .1f"
                raise ExpressionInvalid(f"{problem}, with a comma in front", found.start(2))
            parts.append((path, spec))
        elif len(found[0]) == 2:
            parts.append(found[0][0])
        else:
            problem = "this brace stands alone; write {{ or }} for a brace"
            raise ExpressionInvalid(problem, found.start())
    return partial(_rendered, [*parts, text[end:]])


def compile_dedupe(text: str) -> Render:
    """Paths with colons between; the same text for events that are the same again. Raises
    ExpressionInvalid."""
    parts: list[TemplatePart] = []
    at = 0
    for part in text.split(":") if text else ():
        parts += [(compile_path("event.type" if part == "type" else part, at), None), "\n"]
        at += len(part) + 1
    return partial(_rendered, parts)


TemplatePart = str | tuple[Expression, str | None]  # a text, or a path and its format


def _rendered(parts: Sequence[TemplatePart], scope: ExpressionScope) -> str:
    """Raises ExpressionFailed."""
    texts = [part if isinstance(part, str) else _shown(*part, scope) for part in parts]
    return _cut("".join(texts), MOST_RENDERED)


def _shown(path: Expression, spec: str | None, scope: ExpressionScope) -> str:
    value = path.evaluate(scope)
    try:
        return _as_text(value) if spec is None else format(value, spec)
    except CANNOT as error:
        raise ExpressionFailed(f"{path.text}|{spec or ''}: {error}") from error


def _as_text(value: object) -> str:
    """A value as people write it; an empty text for None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return _cut("" if value is None else str(value), MOST)


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

    def hears(self, event_type: str) -> bool:
        """Whether it is for events of this type, by any of the names of the type."""
        kind = kind_named(event_type)
        names = (kind.type, kind.constant, kind.hook or "") if kind else (event_type,)
        return any(fnmatchcase(name, one) for one in self.definition.on for name in names)

    def is_severe_enough(self, event: Event) -> bool:
        least = SEVERITIES.index(self.definition.min_severity)
        return SEVERITIES.index(event.severity) >= least

    def acts(self, event: Event, scope: ExpressionScope) -> tuple[Act, ...]:
        """Raises ExpressionFailed."""
        return tuple(make(event, scope) for make in self.makers)


def compiled(definition: RuleDef) -> tuple[CompiledRule, tuple[RuleProblem, ...]]:
    """The rule must not be used if there is a problem."""
    compiler = _Compiler(definition)
    for index, name in enumerate(definition.on):
        compiler.check_event(("on", index), name)
    if definition.is_core and not definition.is_enabled:
        compiler.wrong(("enabled",), "a core rule cannot be disabled", "leave enabled out")
    when = definition.when and compiler.read(("when",), definition.when, _evaluation)
    dedupe = compiler.read(("batch", "dedupe"), definition.batch.dedupe, compile_dedupe)
    makers: list[Make] = []
    for index, action in enumerate(definition.do):
        makers += compiler.makers(("do", index), action, dedupe)
    return CompiledRule(definition, when or None, tuple(makers)), tuple(compiler.problems)


def problems_of(definition: RuleDef) -> tuple[RuleProblem, ...]:
    return compiled(definition)[1]


def _evaluation(text: str) -> Compiled:
    return compile_expression(text, roots=ROOTS).evaluate


@dataclass(slots=True)
class _Compiler:
    """Compiles one rule, and gathers what is wrong with it."""

    rule: RuleDef
    problems: list[RuleProblem] = field(default_factory=list)

    def wrong(self, path: Place, message: str, fix: str, column: int | None = None) -> None:
        self.problems.append(RuleProblem(path, message, fix, column))

    def read(self, path: Place, text: str, compile_text: Callable[[str], Compiled]) -> Compiled:
        try:
            return compile_text(text)
        except ExpressionInvalid as error:
            fix = "correct it; docs/reference/rules.md says what can be written"
            self.wrong(path, f"{quoted(text)}: {error.problem}", fix, error.column)
            return str  # never called: a rule with a problem is not used

    def check_event(self, path: Place, name: str) -> None:
        if not _GLOB.fullmatch(name):
            self.wrong(path, f"{quoted(name)} is no name of events", "write one, * for any part")
        elif "*" not in name and kind_named(name) is None:
            known = [one for kind in KINDS for one in (kind.type, kind.constant, kind.hook) if one]
            near = meant(name, known) or f"; there are {', '.join(kind.type for kind in KINDS)}"
            fix = f'"{name}*" hears events of rules and trees'
            self.wrong(path, f'unknown event "{name}"{near}', fix)

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
            message = f'"{point}" waits for no {waits[0]}' if waits else "it waits for nothing"
            fix = f'write inject_at = "deferred" with one of {", ".join(WAITS)}'
            self.wrong((*above, "inject_at"), message, fix)
        if "not_before" in options:
            options["when"] = options.pop("not_before")
            self.read((*above, "not_before"), str(options["when"]), _evaluation)
        batch, expires_s = self.rule.batch, options.pop("expires_s", None)
        options["batching"] = Batching(batch.window_ms / 1_000, batch.max, batch.dedupe_ms / 1_000)
        options["source"] = f"rule:{self.rule.id}"

        def make(event: Event, scope: ExpressionScope) -> Act:
            end = event.at + timedelta(seconds=expires_s) if expires_s else None
            same, content = dedupe(scope), text(scope)
            key = f"{above[-1]} {same}" if same else None  # an action repeats only itself
            notice = Notice(content, **options, expires_at=end, dedupe_key=key, data=event.payload)
            return Act("notify", {"notice": notice})

        return make

    def _set(self, path: Place, key: str, value: object) -> Make:
        if not isinstance(value, str):
            return lambda event, scope: Act("set_state", {"key": key, "value": value})
        evaluate = self.read(path, value, _evaluation)

        def make(event: Event, scope: ExpressionScope) -> Act:
            return Act("set_state", {"key": key, "value": _kept(key, evaluate(scope))})

        return make

    def _emit(self, above: Place, action: Action) -> Make:
        event_type, given = str(action.value), action.options.get("payload", {})
        severity = action.options.get("severity", "info")
        assert isinstance(given, dict)
        if kind_named(event_type):
            message = f'"{event_type}" is an event of the gateway\'s own'
            self.wrong((*above, "emit"), message, "choose another name, such as house.quiet")
        elif not _TYPE.fullmatch(event_type):
            message = f"{quoted(event_type)} is no type of event"
            self.wrong((*above, "emit"), message, "write words with dots between: house.quiet")
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


def _kept(key: str, value: object) -> object:
    """Refuses what is not plain or not small: the value is stored with the session."""
    is_fine = isinstance(value, str | None)
    if isinstance(value, int | float):
        is_fine = -LARGEST <= value <= LARGEST
    if not is_fine:
        raise ExpressionFailed(f"{key}: a {type(value).__name__} like this cannot be kept")
    if isinstance(value, str) and len(value) > MOST:
        raise ExpressionFailed(f"{key}: a text of more than {MOST} characters cannot be kept")
    return value


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


class _RulesByEvent(dict[str, tuple[CompiledRule, ...]]):
    """The rules for a type of event, found once for each type."""

    def __init__(self, rules: tuple[CompiledRule, ...]) -> None:
        self._rules = rules

    def __missing__(self, event_type: str) -> tuple[CompiledRule, ...]:
        found = tuple(rule for rule in self._rules if rule.hears(event_type))
        if len(self) < MOST_REMEMBERED:
            self[event_type] = found
        return found


class RuleSet:
    """Every rule in the order of firing, with its failures in all runs."""

    def __init__(
        self, rules: Iterable[CompiledRule], refused: tuple[RefusedRules, ...] = ()
    ) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: -rule.definition.priority))
        self.refused = refused
        self.faults = {rule.definition.id: Faults() for rule in self.rules}
        self.by_event = _RulesByEvent(self.rules)
        self.keeps_state = any(rule.definition.keeps_state for rule in self.rules)

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Of each rule by its id: the same for the same rule in every process and every file."""
        found = {}
        for one in (rule.definition for rule in self.rules):
            text = json.dumps(replace(one, source=""), default=_plain, sort_keys=True)
            found[one.id] = blake2b(text.encode(), digest_size=8).hexdigest()
        return found

    def failed(self, rule: CompiledRule, error: ExpressionFailed) -> Act:
        """Counts the failure. Returns the act that tells of it."""
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
        """Takes over the failures of rules that have not changed."""
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
    """The names of one event, and behind them those of the turn."""

    own: Mapping[str, object]
    outer: Mapping[str, object]

    def get(self, name: str, /) -> object:
        return self.own[name] if name in self.own else self.outer.get(name)


def view(event: Event, scope: Mapping[str, object], plugin: Mapping[str, object]) -> _View:
    """What expressions and templates see."""
    names = {
        "type": event.type,
        "severity": event.severity,
        "source": event.source,
        "at": event.at.isoformat(),
        "session_key": str(event.session_key or ""),
        "run_id": event.run_id or "",
    }
    return _View({"event": names, "payload": event.payload, "plugin": plugin}, scope)


class RunRules:
    """The rules of one run. `only`: the ids that its agent names; none: every one that is enabled.

    `kept` is what rules of this session have set before."""

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
        # What the session keeps from now on; None if nothing has changed.
        self.kept: Mapping[str, object] | None = None

    def on(self, event: Event, scope: Mapping[str, object]) -> tuple[Act, ...]:
        """What the rules want done about an event, in the order of their priority."""
        rules = [one for one in self.by_event[event.type] if self._may_fire(one, event)]
        if not rules:
            return ()
        seen = view(event, scope, self._kept)
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
            return [self._rules.failed(rule, error)]
        self._fired.add(rule.definition.id)
        if rule.definition.once_per == "session":
            self._keep(ONCE + rule.definition.id, True)  # noqa: FBT003  # a value like any other
        for act in acts:
            if act.kind == "set_state":
                self._keep(act.values["key"], act.values["value"])
        return acts

    def _keep(self, key: str, value: object) -> None:
        self._kept[key], self.kept = value, MappingProxyType(self._kept)
