"""`exogate rule` and `exogate tree`: list, check and try the operator's rules and behaviour trees, with or without a
gateway."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import gateway
from gateway.agent.leaves import REGISTRY
from gateway.api.declarations import plain
from gateway.app.generation import rule_set
from gateway.cli.command import FAILED, JSON, CliContext, JsonObject, Unreachable, failure
from gateway.cli.configuration import load_config
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

SCOPE_ROOTS = ROOTS[2:]  # `event` and `payload` have their own options
RULE_COLUMNS = ("id", "on", "core", "enabled", "quarantined", "errors", "last_error", "source")
SHIPPED = Path(gateway.__file__).parent / "agent" / "trees"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def rule() -> None: ...


@rule.command("list")
@click.pass_obj
def list_rules(context: CliContext) -> None:
    try:
        result = ask(context, "rule.list")
    except Unreachable:
        config = load_config(context)
        result = plain(describe_rules(rule_set(config, config.rule_folder)))
    refused = (f"refused: {one['file']}\n{one['why']}" for one in result["refused"])
    context.print_result(result, *table(result["rules"], RULE_COLUMNS), *refused)


@rule.command("test")
@click.argument("what", metavar="FILE_OR_ID")
@click.option("--event", "event_name", required=True, help="The event, by any of its names.")
@click.option("--payload", default="{}", type=JSON, help="The payload of the event, as JSON.")
@click.option(
    "--scope",
    default="{}",
    type=JSON,
    help="Other variables of rules, as JSON: one object per root.",
)
@click.pass_obj
def test_rule(
    context: CliContext, what: str, event_name: str, payload: JsonObject, scope: JsonObject
) -> None:
    kind = kind_named(event_name)
    event = Event(
        kind.type if kind else event_name,
        kind.severity if kind else "info",
        *("test", SystemClock().now(), None, None),
        payload,
    )
    if unknown := scope.keys() - set(SCOPE_ROOTS):
        name = min(unknown)
        near = meant(name, SCOPE_ROOTS)
        raise click.BadParameter(f'there is no root "{name}"{near}', param_hint="--scope")
    results = [_try_rule(one, event, scope) for one in _find_rules(context, what)]
    if context.json:
        click.echo(json.dumps({"event": event.type, "rules": results}, default=str))
        return
    for one in results:
        click.echo(f"{one['id']}: {one['verdict']}")
        for act in one["acts"]:
            click.echo(f"    {json.dumps(act, default=str, ensure_ascii=False)}")


def _find_rules(context: CliContext, what: str) -> Sequence[CompiledRule]:
    """Returns the rules of a file, or the rule with that id. Raises ConfigInvalid."""
    path = Path(what)
    if path.is_file():
        reader = RuleReader(check_rule)
        core = {one.id: one for one in reader.read_file(CORE, {})}
        return load_rules(reader.read_file(path, core)).rules
    config = load_config(context)
    every = rule_set(config, config.rule_folder).rules
    found = [one for one in every if one.definition.id == what]
    if not found:
        near = meant(what, [one.definition.id for one in every])
        raise click.ClickException(f'there is no file and no rule "{what}"{near}')
    return found


def _try_rule(rule: CompiledRule, event: Event, scope: Mapping[str, Any]) -> dict[str, Any]:
    variables = rule_scope(event, scope, scope.get("plugin", {}))
    result: dict[str, Any] = {"id": rule.definition.id, "hears": rule.matches(event.type)}
    result |= {"when": None, "fires": False, "acts": []}
    if not result["hears"] or not rule.is_severe_enough(event):
        why = "is not severe enough" if result["hears"] else "is not among its events"
        return result | {"verdict": f"does not fire: {event.type} {why}"}
    if not rule.definition.is_enabled:
        return result | {"verdict": "does not fire: it is disabled"}
    try:
        result["when"] = rule.when(variables) if rule.when else True
        if not result["when"]:
            return result | {"verdict": f"does not fire: when gives {result['when']!r}"}
        acts = rule.acts(event, variables)
        result["acts"] = [{"act": act.kind, **asdict(act)["values"]} for act in acts]
    except ExpressionFailed as error:
        return result | {"verdict": f"fails: {error}"}
    return result | {"fires": True, "verdict": f"fires; when gives {result['when']!r}"}


# -- trees


@click.group()
def tree() -> None: ...


@tree.command()
@click.argument("file", type=FILE)
@click.pass_obj
def check(context: CliContext, file: Path) -> None:
    with _report_invalid(context, file):
        plan = load(_text(file), file.name, REGISTRY)
    found, count = list(map(_problem, plan.warnings)), len(plan.warnings)
    counted = f", with {count} warning{'s' if count > 1 else ''}" if count else ""
    context.print_result(
        {"ok": True, "file": str(file), "tree": plan.name, "problems": found},
        *(warning.render() for warning in plan.warnings),
        f'{file}: tree "{plan.name}" is valid{counted}',
    )


@tree.command("show")
@click.argument("name")
def show_tree(name: str) -> None:
    names = sorted(path.stem for path in SHIPPED.glob("*.bt"))
    if name not in names:
        raise click.ClickException(f'no tree "{name}" is shipped; there are {", ".join(names)}')
    click.echo((SHIPPED / f"{name}.bt").read_text(encoding="utf-8"), nl=False)


@tree.command()
@click.argument("file", type=FILE)
@click.option("--write", is_flag=True, help="Write the file instead of printing it.")
@click.option(
    "--check", "only_check", is_flag=True, help="Print nothing; exit 1 if the layout differs."
)
@click.pass_obj
def fmt(context: CliContext, file: Path, *, write: bool, only_check: bool) -> None:
    with _report_invalid(context, file):
        text = _text(file)
        laid_out = format_tree(text, file.name)
    is_same = laid_out == text
    if write and not is_same:
        file.write_text(laid_out, encoding="utf-8", newline="")
    if context.json:
        context.print_json({"ok": True, "file": str(file), "changed": not is_same})
    elif not write and not only_check:
        click.echo(laid_out, nl=False)
    if only_check and not is_same:
        click.echo(f"{file} is not formatted", err=True)
        raise SystemExit(FAILED)


@tree.command("trace")
@click.argument("file", type=FILE)
@click.option("--script", type=FILE, required=True, help="The answers of the leaves, as JSON.")
@click.pass_obj
def trace_tree(context: CliContext, file: Path, script: Path) -> None:
    with _report_invalid(context, file):
        plan = load(_text(file), file.name)
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
    context.print_result(asdict(traced), *lines)


def _text(file: Path) -> str:
    return decode_file(file.read_bytes(), file.name)


@contextmanager
def _report_invalid(context: CliContext, file: Path) -> Iterator[None]:
    """Prints the problems of an invalid tree and exits."""
    try:
        yield
    except TreeInvalid as error:
        failed = failure("tree_invalid", f"{file} is not a valid tree")
        found, count = list(map(_problem, error.problems)), len(error.problems)
        more = f", and {error.left_out} more" if error.left_out else ""
        context.print_result(
            {**failed, "file": str(file), "problems": found, "left_out": error.left_out},
            str(error),
            f"{file}: {count} problem{'s' if count > 1 else ''}{more}",
        )
        raise SystemExit(FAILED) from None


def _problem(problem: TreeProblem) -> dict[str, object]:
    names = ("code", "severity", "line", "column", "message")
    return {name: getattr(problem, name) for name in names}
