"""Rules from three sources: the shipped core rules, `[[rules]]`, and the files of `rules_dir`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_args

from gateway.config.document import Document, build_error, read_document
from gateway.config.problems import (
    Code,
    ConfigFinding,
    ConfigInvalid,
    ConfigProblem,
    KeyPath,
    Report,
    without_consequences,
)
from gateway.config.reading import Reading
from gateway.config.sections import SectionReader
from gateway.config.values import ActionKeys, GatewayConfig, RuleFolder
from gateway.domain.events import Action, ActionKind, RefusedRules, RuleDef, RuleProblem
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
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*rules[ \t]*\]\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RuleReader:
    """Reads rules. `problems` finds the problems of a well-formed rule; `name` returns a file's name in messages.
    In every method, `taken` are the rules that already exist."""

    problems: Callable[[RuleDef], Sequence[RuleProblem]]
    name: Callable[[Path], str] = str

    def read_file(self, path: Path, taken: Mapping[str, RuleDef]) -> tuple[RuleDef, ...]:
        """Reads a rules file. Raises ConfigInvalid with all problems."""
        return self.read_document(read_document(path, self.name(path)), taken)

    def read_document(
        self, document: Document, taken: Mapping[str, RuleDef]
    ) -> tuple[RuleDef, ...]:
        """Reads a document that contains only rules. Raises ConfigInvalid with all problems."""
        report = Report()
        reader = SectionReader(report)
        for key in document.content.keys() - {"rules"}:
            message, fix = f"unknown key {quoted(key)}", "a rules file may contain only [[rules]]"
            report.wrong(Code.UNKNOWN_KEY, (key,), message, fix, at="key")
        rules = {"rules": document.content.get("rules", [])}
        written = reader.section(GatewayConfig, rules, ()).rules
        found = self.read_rules(written, document, report, taken)
        findings = [*reader.findings, *without_consequences(report.findings, reader.findings)]
        if findings:
            raise build_error(findings, document, left_out=reader.left_out)
        return found

    def read_folder(self, path: Path, taken: Mapping[str, RuleDef]) -> RuleFolder:
        """Reads every `*.toml` of a folder, in the order of names; a file with errors is skipped whole."""
        rules: dict[str, RuleDef] = {}
        refused: list[RefusedRules] = []
        problems: list[ConfigProblem] = []
        for file in sorted(path.glob("*.toml"))[:MOST_FILES]:
            try:
                found = self.read_file(file, {**taken, **rules})
            except ConfigInvalid as error:
                refused.append(RefusedRules(self.name(file), error.render()))
                problems += error.problems
            else:
                rules |= {rule.id: rule for rule in found}
        return RuleFolder(path, tuple(rules.values()), tuple(refused), tuple(problems))

    def read_rules(
        self,
        written: Sequence[RuleDef],
        document: Document,
        report: Report,
        taken: Mapping[str, RuleDef],
    ) -> tuple[RuleDef, ...]:
        found: dict[str, RuleDef] = {}
        starts = [header.start() for header in _HEADER.finditer(document.text)]
        for index, one in enumerate(written):
            path: KeyPath = ("rules", index)
            source = document.name
            # The counts differ if rules are inline tables, or if a text contains such a line.
            if len(starts) == len(written):
                source += f":{document.text.count(chr(10), 0, starts[index]) + 1}"
            _check_id((*path, "id"), one.id, {**taken, **found}, report)
            rule = replace(one, do=_actions(path, one, report), source=source)
            for problem in self.problems(rule):
                code = Code.UNKNOWN_NAME if problem.path[0] == "on" else Code.MALFORMED
                where, column = (*path, *problem.path), problem.column
                report.findings.append(
                    ConfigFinding(code, where, problem.message, problem.fix, column=column)
                )
            found[rule.id] = rule
        return tuple(found.values())


def resolve_rules(
    reading: Reading, config: GatewayConfig
) -> tuple[tuple[RuleDef, ...], RuleFolder | None]:
    """Returns all rules, the core ones first, and the content of `rules_dir`."""
    known, folder = reading.known, None
    reader = RuleReader(known.rule_problems, reading.inputs.name)
    core = reader.read_file(known.core_rules, {}) if known.core_rules else ()
    rules = {rule.id: rule for rule in core}
    rules |= {
        rule.id: rule for rule in reader.read_rules(config.rules, reading.document, reading, rules)
    }
    if config.rules_dir:
        path = reading.inputs.path(config.rules_dir, reading.folder).absolute()
        if not path.is_dir():
            message = f"there is no folder {quoted(str(path))}"
            fix = "create the folder, or remove rules_dir"
            reading.wrong(Code.MISSING_FILE, ("rules_dir",), message, fix)
        folder = reader.read_folder(path, rules)
    if folder is None or not folder.refused:  # a refused file may define the name
        more = folder.rules if folder else ()
        reading.names = {**reading.names, "rule": [*rules, *(rule.id for rule in more)]}
    return tuple(rules.values()), folder


def _check_id(path: KeyPath, rule_id: str, taken: Mapping[str, RuleDef], report: Report) -> None:
    other = taken.get(rule_id)
    if other is not None:
        message, fix = (
            f"another rule has id {quoted(rule_id)} ({other.source})",
            "choose another id",
        )
        if other.is_core:
            message = f"{quoted(rule_id)} is a core rule, which cannot be disabled or replaced"
        report.wrong(Code.DUPLICATE, path, message, fix)


def _actions(path: KeyPath, rule: RuleDef, report: Report) -> tuple[Action, ...]:
    for key in ("on", "do"):
        if not getattr(rule, key):
            message = f"the rule has no {quoted(key)}"
            report.wrong(Code.MISSING, (*path, key), message, "add at least one")
    written = cast("Sequence[ActionKeys]", rule.do)
    actions = (_action((*path, "do", at), one, report) for at, one in enumerate(written))
    return tuple(action for action in actions if action)


def _action(path: KeyPath, written: ActionKeys, report: Report) -> Action | None:
    values = {one.name: getattr(written, one.name) for one in fields(written)}
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        message = f"an action needs exactly one kind; this one has {' and '.join(kinds) or 'none'}"
        fix = f"write one table per action, with one of {', '.join(KINDS)}"
        report.wrong(Code.MALFORMED, path, message, fix)
        return None
    value, allowed = given.pop(kinds[0]), OPTIONS.get(kinds[0], ())
    for key in given.keys() - set(allowed):
        message, fix = f"{quoted(key)} is not an option of {kinds[0]}", choose(key, allowed)
        report.wrong(Code.UNKNOWN_KEY, (*path, key), message, fix, at="key")
    return Action(kinds[0], value, given)
