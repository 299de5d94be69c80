"""`exogate rule` and `exogate tree`: what the operator's rules and behaviour trees would do. No gateway has to run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

import gateway
from gateway.agent.leaves import REGISTRY
from gateway.api.declarations import plain
from gateway.app.generation import rule_set
from gateway.cli.command import FAILED, JSON, CliContext, JsonObject, Unreachable, failure
from gateway.cli.configuration import configured
from gateway.cli.link import ask
from gateway.cli.verbs import table
from gateway.config.rules import RuleReader
from gateway.control.expressions import ExpressionFailed
from gateway.control.rules import CORE, ROOTS, CompiledRule, check_rule, load_rules, rule_scope
from gateway.control.trees.lint import format_tree
from gateway.control.trees.loading import load
from gateway.control.trees.reader import TreeInvalid, TreeProblem, decode_file
from gateway.control.trees.tracing import BadScript, LeafScript, trace
from gateway.domain.events import Event, kind_named
from gateway.domain.text import meant
from gateway.host.clock import SystemClock
from gateway.web.status import describe_rules

GIVEN_ROOTS = ROOTS[2:]  # without event and payload, which have options of their own
RULE_COLUMNS = ("id", "on", "core", "enabled", "quarantined", "errors", "last_error", "source")
SHIPPED = Path(gateway.__file__).parent / "agent" / "trees"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def rule() -> None: ...


@rule.command("list")
@click.pass_obj
def list_rules(context: CliContext) -> None:
    try:
        told = ask(context, "rule.list")
    except Unreachable:
        config = configured(context)
        told = plain(describe_rules(rule_set(config, config.rule_folder)))
    refused = (f"refused: {one['file']}\n{one['why']}" for one in told["refused"])
    context.say(told, *table(told["rules"], RULE_COLUMNS), *refused)


@rule.command("test")
@click.argument("what", metavar="FILE_OR_ID")
@click.option("--event", "event_name", required=True, help="The event, by any of its names.")
@click.option("--payload", default="{}", type=JSON, help="What the event holds, as JSON.")
@click.option(
    "--scope",
    "given",
    default="{}",
    type=JSON,
    help="Other variables of rules, as JSON: one object per root.",
)
@click.pass_obj
def test_rule(
    context: CliContext, what: str, event_name: str, payload: JsonObject, given: JsonObject
) -> None:
    kind = kind_named(event_name)
    event = Event(
        kind.type if kind else event_name,
        kind.severity if kind else "info",
        *("test", SystemClock().now(), None, None),
        payload,
    )
    if unknown := given.keys() - set(GIVEN_ROOTS):
        name = min(unknown)
        near = meant(name, GIVEN_ROOTS)
        raise click.BadParameter(f'"{name}" cannot be given{near}', param_hint="--scope")
    tried = [_tried(one, event, given) for one in _rules(context, what)]
    if context.json:
        click.echo(json.dumps({"event": event.type, "rules": tried}, default=str))
        return
    for one in tried:
        click.echo(f"{one['id']}: {one['verdict']}")
        for act in one["acts"]:
            click.echo(f"    {json.dumps(act, default=str, ensure_ascii=False)}")


def _rules(context: CliContext, what: str) -> Sequence[CompiledRule]:
    """Those of a file, or the one of that id. Raises ConfigInvalid."""
    path = Path(what)
    if path.is_file():
        reader = RuleReader(check_rule)
        core = {one.id: one for one in reader.read_file(CORE, {})}
        return load_rules(reader.read_file(path, core)).rules
    config = configured(context)
    every = rule_set(config, config.rule_folder).rules
    found = [one for one in every if one.definition.id == what]
    if not found:
        near = meant(what, [one.definition.id for one in every])
        raise click.ClickException(f'there is no file and no rule "{what}"{near}')
    return found


def _tried(rule: CompiledRule, event: Event, scope: Mapping[str, Any]) -> dict[str, Any]:
    seen = rule_scope(event, scope, scope.get("plugin", {}))
    told: dict[str, Any] = {"id": rule.definition.id, "hears": rule.matches(event.type)}
    told |= {"when": None, "fires": False, "acts": []}
    if not told["hears"] or not rule.is_severe_enough(event):
        why = "is not severe enough" if told["hears"] else "is not among its events"
        return told | {"verdict": f"does not fire: {event.type} {why}"}
    if not rule.definition.is_enabled:
        return told | {"verdict": "does not fire: it is disabled"}
    try:
        told["when"] = rule.when(seen) if rule.when else True
        if not told["when"]:
            return told | {"verdict": f"does not fire: when gives {told['when']!r}"}
        acts = rule.acts(event, seen)
        told["acts"] = [{"act": act.kind, **asdict(act)["values"]} for act in acts]
    except ExpressionFailed as error:
        return told | {"verdict": f"fails: {error}"}
    return told | {"fires": True, "verdict": f"fires; when gives {told['when']!r}"}


# -- trees


@click.group()
def tree() -> None: ...


@tree.command()
@click.argument("file", type=FILE)
@click.pass_obj
def check(context: CliContext, file: Path) -> None:
    try:
        plan = load(_text(file), file.name, REGISTRY)
    except TreeInvalid as error:
        _refuse(context, file, error)
    found, count = list(map(_problem, plan.warnings)), len(plan.warnings)
    counted = f", with {count} warning{'s' if count > 1 else ''}" if count else ""
    context.say(
        {"ok": True, "file": str(file), "tree": plan.name, "problems": found},
        *(warning.render() for warning in plan.warnings),
        f'{file}: tree "{plan.name}" is valid{counted}',
    )


@tree.command("show")
@click.argument("name")
def show_tree(name: str) -> None:
    names = sorted(path.stem for path in SHIPPED.glob("*.bt"))
    if name not in names:
        there_are = ", ".join(names)
        raise click.ClickException(f'no tree "{name}" is shipped; there are {there_are}')
    click.echo((SHIPPED / f"{name}.bt").read_text(encoding="utf-8"), nl=False)


@tree.command()
@click.argument("file", type=FILE)
@click.option("--write", is_flag=True, help="Write the file instead of printing it.")
@click.option("--check", "only_check", is_flag=True, help="Only fail if the layout differs.")
@click.pass_obj
def fmt(context: CliContext, file: Path, *, write: bool, only_check: bool) -> None:
    try:
        text = _text(file)
        laid_out = format_tree(text, file.name)
    except TreeInvalid as error:
        _refuse(context, file, error)
    is_same = laid_out == text
    if write and not is_same:
        file.write_text(laid_out, encoding="utf-8", newline="")
    if context.json:
        context.tell({"ok": True, "file": str(file), "changed": not is_same})
    elif not write and not only_check:
        click.echo(laid_out, nl=False)
    if only_check and not is_same:
        click.echo(f"{file} is not formatted", err=True)
        raise SystemExit(FAILED)


@tree.command("trace")
@click.argument("file", type=FILE)
@click.option("--script", type=FILE, required=True, help="What the leaves answer, as JSON.")
@click.pass_obj
def trace_tree(context: CliContext, file: Path, script: Path) -> None:
    try:
        plan = load(_text(file), file.name)
    except TreeInvalid as error:
        _refuse(context, file, error)
    try:
        leaves = LeafScript.from_json(json.loads(script.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise BadScript(f"{script}: this is not JSON ({error})") from None
    traced = trace(plan, leaves)
    lines = [f'tree "{plan.name}"']
    for number, tick in enumerate(traced.ticks, 1):
        ticked = " ".join(f"{name}={status}" for name, status in tick.ticked)
        halted = f"   halted: {' '.join(tick.halted)}" if tick.halted else ""
        lines.append(f"{number:>4} {tick.status}  {ticked}{halted}")
    if traced.final_halt:
        lines.append(f"halted at the end: {' '.join(traced.final_halt)}")
    context.say(asdict(traced), *lines)


def _text(file: Path) -> str:
    return decode_file(file.read_bytes(), file.name)


def _refuse(context: CliContext, file: Path, error: TreeInvalid) -> NoReturn:
    failed = failure("tree_invalid", f"{file} is not a valid tree")
    found, count = list(map(_problem, error.problems)), len(error.problems)
    more = f", and {error.left_out} more" if error.left_out else ""
    context.say(
        {**failed, "file": str(file), "problems": found, "left_out": error.left_out},
        str(error),
        f"{file}: {count} problem{'s' if count > 1 else ''}{more}",
    )
    raise SystemExit(FAILED)


def _problem(problem: TreeProblem) -> dict[str, object]:
    names = ("code", "severity", "line", "column", "message")
    return {name: getattr(problem, name) for name in names}
