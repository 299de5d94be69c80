"""A rule as it is written becomes one that can be asked; all that is wrong with it is found here."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gateway.control.expressions import (
    LARGEST,
    Expression,
    ExpressionFailed,
    ExpressionInvalid,
    Scope,
    compile_expression,
)
from gateway.control.rules.acts import (
    Act,
    AddTool,
    Emit,
    Interrupt,
    Log,
    Notify,
    RemoveTool,
    SetModel,
    SetState,
)
from gateway.control.rules.templates import MOST, Template, compile_path, compile_template, shown
from gateway.control.words import meant, short
from gateway.domain.events import KINDS, SEVERITIES, Event, kind_named
from gateway.domain.notices import Batching, Notice
from gateway.domain.rules import Action, RuleDef, RuleProblem

CORE = Path(__file__).with_name("core.toml")  # the rules that ship with the gateway
ROOTS = (
    *("event", "payload", "turn", "state", "limits", "usage", "context", "history"),
    *("user", "project", "plugin", "config"),
)
WAITS = ("after_tool", "after_turns", "not_before")
_GLOB = re.compile(r"[\w.*-]{1,100}", re.ASCII)
_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+){1,7}")

Make = Callable[[Event, Scope], Act]
Place = tuple[str | int, ...]
Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class Rule:
    definition: RuleDef
    when: Expression | None
    makers: tuple[Make, ...]

    def hears(self, event_type: str) -> bool:
        """By any of the names that it has."""
        kind = kind_named(event_type)
        names = (kind.type, kind.constant, kind.hook or "") if kind else (event_type,)
        return any(fnmatchcase(name, one) for one in self.definition.on for name in names)

    def is_severe_enough(self, event: Event) -> bool:
        least = SEVERITIES.index(self.definition.min_severity)
        return SEVERITIES.index(event.severity) >= least

    def holds(self, scope: Scope) -> bool:
        """Raises ExpressionFailed."""
        return self.when is None or self.when.holds(scope)

    def acts(self, event: Event, scope: Scope) -> tuple[Act, ...]:
        """Raises ExpressionFailed."""
        return tuple(make(event, scope) for make in self.makers)


def compiled(definition: RuleDef) -> tuple[Rule, tuple[RuleProblem, ...]]:
    """The rule must not be used if there is a problem."""
    compiler = _Compiler(definition)
    for index, name in enumerate(definition.on):
        compiler.check_event(("on", index), name)
    if definition.is_core and not definition.is_enabled:
        compiler.wrong(("enabled",), "a core rule cannot be disabled", "leave enabled out")
    when = compiler.expression(("when",), definition.when) if definition.when else None
    makers: list[Make] = []
    compiler.read_batch()
    for index, action in enumerate(definition.do):
        makers += compiler.makers(("do", index), action)
    rule = Rule(definition, when, tuple(makers))
    return rule, tuple(compiler.problems)


def problems_of(definition: RuleDef) -> tuple[RuleProblem, ...]:
    return compiled(definition)[1]


@dataclass(slots=True)
class _Compiler:
    rule: RuleDef
    problems: list[RuleProblem] = field(default_factory=list)
    batching: Batching = Batching()
    sameness: Template = Template(())  # the same text for events that are the same again

    def wrong(self, path: Place, message: str, fix: str, column: int | None = None) -> None:
        self.problems.append(RuleProblem(path, message, fix, column))

    def check_event(self, path: Place, name: str) -> None:
        if not _GLOB.fullmatch(name):
            self.wrong(path, f'"{short(name)}" is no name of events', "write one, * for any part")
        elif "*" not in name and kind_named(name) is None:
            known = [one for kind in KINDS for one in (kind.type, kind.constant, kind.hook) if one]
            near = meant(name, known) or f"; there are {', '.join(kind.type for kind in KINDS)}"
            fix = f'"{name}*" hears events of rules and trees'
            self.wrong(path, f'unknown event "{name}"{near}', fix)

    def expression(self, path: Place, text: str) -> Expression:
        return self._built(path, text, lambda: compile_expression(text, roots=ROOTS), _NOTHING)

    def template(self, path: Place, text: str) -> Template:
        return self._built(path, text, lambda: compile_template(text, ROOTS), Template(()))

    def read_batch(self) -> None:
        batch, at, path = self.rule.batch, 0, ("batch", "dedupe")
        self.batching = Batching(batch.window_ms / 1_000, batch.max, batch.dedupe_ms / 1_000)
        parts: list[str | Callable[[Scope], str]] = []
        for part in batch.dedupe.split(":") if batch.dedupe else ():
            build = partial(compile_path, "event.type" if part == "type" else part, ROOTS, at)
            parts += [shown(self._built(path, batch.dedupe, build, _NOTHING)), "\n"]
            at += len(part) + 1
        self.sameness = Template(tuple(parts))

    def makers(self, above: Place, action: Action) -> Sequence[Make]:
        path = (*above, action.kind)
        match action.kind:
            case "notify":
                return (self._notify(above, action),)
            case "set_state":
                assert isinstance(action.value, dict)
                return [self._set((*path, key), key, one) for key, one in action.value.items()]
            case "emit":
                return (self._emit(above, action),)
            case "log":
                text = self.template(path, str(action.value))
                level = str(action.options.get("level", "info"))
                return (lambda event, scope: Log(level, text.render(scope)),)
            case "interrupt":
                text = self.template(path, str(action.value))
                return (lambda event, scope: Interrupt(text.render(scope)),)
            case "set_model" | "add_tool" | "remove_tool":
                act = _NAMED[action.kind](str(action.value))
                return (lambda event, scope: act,)

    def _notify(self, above: Place, action: Action) -> Make:
        text, given = self.template((*above, "notify"), str(action.value)), {**action.options}
        waits = [name for name in WAITS if name in given]
        point = given.setdefault("inject_at", "deferred" if waits else "turn_start")
        if bool(waits) != (point == "deferred"):
            message = f'"{point}" waits for no {waits[0]}' if waits else "it waits for nothing"
            fix = f'write inject_at = "deferred" with one of {", ".join(WAITS)}'
            self.wrong((*above, "inject_at"), message, fix)
        if "not_before" in given:
            given["when"] = given.pop("not_before")
            self.expression((*above, "not_before"), str(given["when"]))
        expires_s: Any = given.pop("expires_s", None)
        options: dict[str, Any] = {
            **given,
            "source": f"rule:{self.rule.id}",
            "batching": self.batching,
        }
        sameness = self.sameness

        def make(event: Event, scope: Scope) -> Act:
            end = event.at + timedelta(seconds=expires_s) if expires_s else None
            same, content = sameness.render(scope), text.render(scope)
            key = f"{above[-1]} {same}" if same else None  # an action repeats only itself
            return Notify(
                Notice(content, **options, expires_at=end, dedupe_key=key, data=event.payload)
            )

        return make

    def _set(self, path: Place, key: str, value: object) -> Make:
        if not isinstance(value, str):
            return lambda event, scope: SetState(key, value)
        expression = self.expression(path, value)
        return lambda event, scope: SetState(key, _kept(key, expression.evaluate(scope)))

    def _emit(self, above: Place, action: Action) -> Make:
        event_type, given = str(action.value), action.options.get("payload", {})
        severity: Any = action.options.get("severity", "info")
        assert isinstance(given, dict)
        if kind_named(event_type):
            message = f'"{event_type}" is an event of the gateway\'s own'
            self.wrong((*above, "emit"), message, "choose another name, such as house.quiet")
        elif not _TYPE.fullmatch(event_type):
            message = f'"{short(event_type)}" is no type of event'
            self.wrong((*above, "emit"), message, "write words with dots between: house.quiet")
        payload = {
            key: self.template((*above, "payload", key), one) if isinstance(one, str) else one
            for key, one in given.items()
        }

        def make(event: Event, scope: Scope) -> Act:
            told = {
                key: one.render(scope) if isinstance(one, Template) else one
                for key, one in payload.items()
            }
            return Emit(event_type, told, severity)

        return make

    def _built(self, path: Place, text: str, build: Callable[[], Built], instead: Built) -> Built:
        try:
            return build()
        except ExpressionInvalid as error:
            fix = "correct it; docs/rules.md says what can be written"
            self.wrong(path, f'"{short(text)}": {error.problem}', fix, error.column)
            return instead


_NOTHING = Expression("", frozenset(), lambda scope: None)
_NAMED: dict[str, Callable[[str], Act]] = {
    "set_model": SetModel,
    "add_tool": AddTool,
    "remove_tool": RemoveTool,
}


def _kept(key: str, value: object) -> object:
    """Plain and small: it is stored with the session."""
    is_fine = isinstance(value, str | None)
    if isinstance(value, int | float):
        is_fine = -LARGEST <= value <= LARGEST
    if not is_fine:
        raise ExpressionFailed(f"{key}: a {type(value).__name__} like this cannot be kept")
    if isinstance(value, str) and len(value) > MOST:
        raise ExpressionFailed(f"{key}: a text of more than {MOST} characters cannot be kept")
    return value
