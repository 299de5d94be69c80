"""Rules from their text, and events for them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.config.document import Document
from gateway.config.problems import ConfigInvalid, ConfigProblem
from gateway.config.rules import RuleReader
from gateway.control.rules import CORE, RuleSet, check_rule, load_rules
from gateway.domain.events import Event, RuleDef, Severity, kind_named
from gateway.domain.ids import RunId

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


CORE_RULES = RuleReader(check_rule).read_file(CORE, {})


def core_definitions() -> tuple[RuleDef, ...]:
    return CORE_RULES


def definitions(text: str) -> tuple[RuleDef, ...]:
    """Of a file with this text, called r.toml."""
    document = Document.parse(Path("r.toml"), "r.toml", text.encode())
    return RuleReader(check_rule).read_document(document, {rule.id: rule for rule in CORE_RULES})


def rules_of(text: str) -> RuleSet:
    """Without the core rules."""
    return load_rules(definitions(text))


def rule(rest: str, rule_id: str = "r") -> str:
    """A rule on every event, if `rest` does not say otherwise; it tells the model `fired`."""
    on = "" if "on =" in rest else 'on = ["*"]\n'
    do = "" if "do =" in rest else 'do = [{ notify = "fired", to = "model" }]\n'
    return f'[[rules]]\nid = "{rule_id}"\n{on}{do}{rest}\n'


def problems(text: str) -> tuple[ConfigProblem, ...]:
    try:
        definitions(text)
    except ConfigInvalid as error:
        return error.problems
    return ()


def event(
    name: str = "query.start",
    payload: Mapping[str, object] | None = None,
    *,
    severity: Severity | None = None,
    after_ms: int = 0,
) -> Event:
    """By any of its names; the first one comes at noon."""
    kind = kind_named(name)
    return Event(
        kind.type if kind else name,
        severity or (kind.severity if kind else "info"),
        "agent",
        NOON + timedelta(milliseconds=after_ms),
        None,
        RunId("run-1"),
        payload or {},
    )
