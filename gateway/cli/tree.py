"""`exogate tree`: check, show, format and trace behaviour trees. Needs no gateway that runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click

import gateway
from gateway.cli.context import CliContext
from gateway.cli.ending import failure
from gateway.control.trees.engine import BadScript, LeafScript, Trace, trace
from gateway.control.trees.lint import formatted
from gateway.control.trees.loading import load
from gateway.control.trees.plan import LeafRegistry, TreePlan
from gateway.control.trees.reader import TreeInvalid, TreeProblem, decoded

SHIPPED = Path(gateway.__file__).parent / "agent" / "trees"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def offered() -> LeafRegistry:
    """What trees are checked against."""
    from gateway.agent.leaves import REGISTRY  # noqa: PLC0415  # only some verbs need it

    return REGISTRY


@click.group()
def tree() -> None:
    """Check, show, format and trace behaviour trees."""


@tree.command()
@click.argument("file", type=FILE)
@click.pass_obj
def check(context: CliContext, file: Path) -> None:
    """List errors and warnings of a tree; exit 1 for an error."""
    try:
        plan = load(_text(file), file.name, offered())
    except TreeInvalid as error:
        _refuse(context, file, error)
    if context.json:
        found = [_as_json(problem) for problem in plan.warnings]
        click.echo(
            json.dumps({"ok": True, "file": str(file), "tree": plan.name, "problems": found})
        )
        return
    for warning in plan.warnings:
        click.echo(warning.render())
    click.echo(f'{file}: tree "{plan.name}" is valid{_counted(len(plan.warnings))}')


@tree.command()
@click.argument("name")
def show(name: str) -> None:
    """Print the text of a tree that ships with the gateway."""
    names = sorted(path.stem for path in SHIPPED.glob("*.bt"))
    if name not in names:
        there_are = f"there are {', '.join(names)}" if names else "there is none"
        raise click.ClickException(f'no tree "{name}" is shipped; {there_are}')
    click.echo((SHIPPED / f"{name}.bt").read_text(encoding="utf-8"), nl=False)


@tree.command()
@click.argument("file", type=FILE)
@click.option("--write", is_flag=True, help="Write the file instead of printing it.")
@click.option("--check", "only_check", is_flag=True, help="Only fail if the layout differs.")
@click.pass_obj
def fmt(context: CliContext, file: Path, *, write: bool, only_check: bool) -> None:
    """Format a tree. Comments stay; formatting it again changes nothing."""
    try:
        text = _text(file)
        laid_out = formatted(text, file.name)
    except TreeInvalid as error:
        _refuse(context, file, error)
    is_same = laid_out == text
    if write and not is_same:
        file.write_text(laid_out, encoding="utf-8", newline="")
    if context.json:
        click.echo(json.dumps({"ok": True, "file": str(file), "changed": not is_same}))
    elif not write and not only_check:
        click.echo(laid_out, nl=False)
    if only_check and not is_same:
        click.echo(f"{file} is not formatted", err=True)
        raise SystemExit(1)


@tree.command("trace")
@click.argument("file", type=FILE)
@click.option("--script", type=FILE, required=True, help="What the leaves answer, as JSON.")
@click.pass_obj
def trace_(context: CliContext, file: Path, script: Path) -> None:
    """Tick a tree with scripted leaves; print what ran and halted."""
    try:
        plan = load(_text(file), file.name)
    except TreeInvalid as error:
        _refuse(context, file, error)
    traced = trace(plan, _script(script))
    if context.json:
        click.echo(json.dumps(asdict(traced)))
    else:
        _print(plan, traced)


def _text(file: Path) -> str:
    return decoded(file.read_bytes(), file.name)


def _script(file: Path) -> LeafScript:
    try:
        return LeafScript.from_json(json.loads(file.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise BadScript(f"{file}: this is not JSON ({error})") from None


def _refuse(context: CliContext, file: Path, error: TreeInvalid) -> NoReturn:
    if context.json:
        found = [_as_json(problem) for problem in error.problems]
        failed = failure("tree_invalid", f"{file} is not a valid tree")
        shown = {**failed, "file": str(file), "problems": found, "left_out": error.left_out}
        click.echo(json.dumps(shown))
    else:
        click.echo(error)
        more, count = f", and {error.left_out} more" if error.left_out else "", len(error.problems)
        click.echo(f"{file}: {count} problem{'s' if count > 1 else ''}{more}")
    raise SystemExit(1)


def _as_json(problem: TreeProblem) -> dict[str, object]:
    return {
        "code": problem.code,
        "severity": problem.severity,
        "line": problem.line,
        "column": problem.column,
        "message": problem.message,
    }


def _counted(warnings: int) -> str:
    return f", with {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""


def _print(plan: TreePlan, traced: Trace) -> None:
    click.echo(f'tree "{plan.name}"')
    for number, tick in enumerate(traced.ticks, 1):
        ticked = " ".join(f"{name}={status}" for name, status in tick.ticked)
        halted = f"   halted: {' '.join(tick.halted)}" if tick.halted else ""
        click.echo(f"{number:>4} {tick.status}  {ticked}{halted}")
    if traced.final_halt:
        click.echo(f"halted at the end: {' '.join(traced.final_halt)}")
