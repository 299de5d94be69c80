"""Rules from three places: those that ship, `[[rules]]`, and the files of `rules_dir`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from gateway.config.checking import check
from gateway.config.document import Document, read_document
from gateway.config.problems import Code, ConfigInvalid, Finding, KeyPath, Report, is_news
from gateway.config.schema import ActionSection, ConfigFile, RuleSection
from gateway.config.values import RuleFolder
from gateway.domain.events import Action, ActionKind, Batch, RefusedRules, RuleDef, RuleProblem
from gateway.domain.text import choose, quoted

KINDS: tuple[ActionKind, ...] = get_args(ActionKind)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "notify": (
        *("inject_at", "priority", "to", "after_tool", "after_turns", "not_before", "expires_s"),
    ),
    "log": ("level",),
    "emit": ("severity", "payload"),
}
MOST_FILES = 1_000
_HEADER = re.compile(rb"^[ \t]*\[\[[ \t]*rules[ \t]*\]\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RuleReader:
    """`problems` finds what is wrong with a rule of the right shape; `name` is how messages call a
    file. `taken` are, in every method, the rules that there are already."""

    problems: Callable[[RuleDef], Sequence[RuleProblem]]
    name: Callable[[Path], str] = str

    def file(self, path: Path, taken: Mapping[str, RuleDef]) -> tuple[RuleDef, ...]:
        """Raises ConfigInvalid with every problem at once."""
        return self.whole(read_document(path, self.name(path)), taken)

    def whole(self, document: Document, taken: Mapping[str, RuleDef]) -> tuple[RuleDef, ...]:
        """Of a document that holds rules alone. Raises ConfigInvalid."""
        report, content = Report(), dict(document.content)
        for key in content.keys() - {"rules"}:
            message, fix = f"unknown key {quoted(key)}", "a file of rules holds [[rules]] alone"
            report.wrong(Code.UNKNOWN_KEY, (key,), message, fix, at="key")
        sections, wrong, left_out = check({"rules": content.get("rules", [])})
        rules = self.rules(sections.rules if sections else (), document, report, taken)
        findings = [*wrong, *(one for one in report.findings if is_news(one, wrong))]
        if findings:
            # tree-sitter and all that only errors need
            from gateway.config.placing import placed  # noqa: PLC0415  # only errors need a place

            raise placed(findings, document, left_out=left_out)
        return rules

    def folder(self, path: Path, taken: Mapping[str, RuleDef]) -> RuleFolder:
        """Every `*.toml` there, in order of names; a file that is not valid is left out whole."""
        rules: dict[str, RuleDef] = {}
        refused: list[RefusedRules] = []
        for file in sorted(path.glob("*.toml"))[:MOST_FILES]:
            try:
                found = self.file(file, {**taken, **rules})
            except ConfigInvalid as error:
                refused.append(RefusedRules(self.name(file), error.render()))
            else:
                rules |= {rule.id: rule for rule in found}
        return RuleFolder(path, tuple(rules.values()), tuple(refused))

    def rules(
        self,
        sections: Sequence[RuleSection],
        document: Document,
        report: Report,
        taken: Mapping[str, RuleDef],
    ) -> tuple[RuleDef, ...]:
        found: dict[str, RuleDef] = {}
        lines = _lines(document, len(sections))
        for index, section in enumerate(sections):
            path: KeyPath = ("rules", index)
            line = f":{lines[index]}" if index < len(lines) else ""
            _check_id((*path, "id"), section.id, {**taken, **found}, report)
            rule = _definition(path, section, f"{document.name}{line}", report)
            for one in self.problems(rule):
                code = Code.UNKNOWN_NAME if one.path[0] == "on" else Code.MALFORMED
                where = (*path, *one.path)
                report.findings.append(
                    Finding(code, where, one.message, one.fix, column=one.column)
                )
            found[rule.id] = rule
        return tuple(found.values())


def check_agents(sections: ConfigFile, ids: Sequence[str], report: Report) -> None:
    """Whether the rules that agents name are there."""
    agents: list[tuple[KeyPath, Sequence[str]]] = [
        (("agents", index), agent.rules) for index, agent in enumerate(sections.agents)
    ]
    if sections.agent is not None:
        agents.append((("agent",), sections.agent.rules))
    for path, names in agents:
        for index, name in enumerate(names):
            if name not in ids:
                where, message = (*path, "rules", index), f"no rule has id {quoted(name)}"
                report.wrong(Code.UNKNOWN_NAME, where, message, choose(name, ids))


def _check_id(path: KeyPath, rule_id: str, taken: Mapping[str, RuleDef], report: Report) -> None:
    other = taken.get(rule_id)
    if other is not None:
        message, fix = f"another rule has id {quoted(rule_id)} ({other.source})", "choose another"
        if other.is_core:
            message = f"{quoted(rule_id)} is a core rule: it cannot be disabled or replaced"
        report.wrong(Code.DUPLICATE, path, message, fix)


def _definition(path: KeyPath, section: RuleSection, source: str, report: Report) -> RuleDef:
    for key in ("on", "do"):
        if not getattr(section, key):
            message = f"the rule has nothing in {quoted(key)}"
            report.wrong(Code.MISSING, (*path, key), message, "add at least one")
    actions = (_action((*path, "do", at), one, report) for at, one in enumerate(section.do))
    return RuleDef(
        id=section.id,
        on=tuple(section.on),
        do=tuple(action for action in actions if action),
        is_core=section.core,
        is_enabled=section.enabled,
        batch=Batch(**dict(section.batch)),
        source=source,
        **section.model_dump(
            include={"description", "priority", "min_severity", "when", "once_per"}
        ),
    )


def _action(path: KeyPath, section: ActionSection, report: Report) -> Action | None:
    given: dict[str, Any] = {name: getattr(section, name) for name in section.model_fields_set}
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        message = f"an action does one thing, this one {' and '.join(kinds) or 'nothing'}"
        fix = f"write one table each, with one of {', '.join(KINDS)}"
        report.wrong(Code.MALFORMED, path, message, fix)
        return None
    value, allowed = given.pop(kinds[0]), OPTIONS.get(kinds[0], ())
    for key in given.keys() - set(allowed):
        message, fix = f"{quoted(key)} is no option of {kinds[0]}", choose(key, allowed)
        report.wrong(Code.UNKNOWN_KEY, (*path, key), message, fix, at="key")
    return Action(kinds[0], value, given)


def _lines(document: Document, count: int) -> Sequence[int]:
    """Where each rule begins. The positions of everything take a parser that is slow to load."""
    starts = [found.start() for found in _HEADER.finditer(document.source)]
    if len(starts) != count:
        return ()  # it is written in another way, or a text holds such a line
    return [document.source.count(b"\n", 0, start) + 1 for start in starts]
