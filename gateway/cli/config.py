"""`exogate config` and `exogate reload`: check, show, change and reload the configuration."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gateway.cli.command import BAD_CONFIG, CliContext, failure, problem_as_json, problems_of
from gateway.cli.configuration import (
    RELOAD_S,
    Edit,
    config_path,
    read_inputs,
    usual_path,
    yes_option,
)
from gateway.cli.link import ask
from gateway.config.document import build_error, locate
from gateway.config.editing import NAMED_BY, parse_path, read_value, value_at, with_value
from gateway.config.load import LoadedConfig, Row, effective, read
from gateway.config.problems import Code, ConfigFinding, ConfigInvalid, ConfigProblem, dotted
from gateway.config.schema import json_schema
from gateway.config.secrets import FOLDER, secret_name
from gateway.domain.text import nearest


@click.group()
def config() -> None: ...


@config.command()
@click.pass_obj
def validate(context: CliContext) -> None:
    try:
        loaded = _load(context)
        name, warnings = loaded.document.name, _trial_notices(loaded)
    except ConfigInvalid as error:
        if context.json:
            notices = [problem_as_json(one) for one in error.warnings]
            result = failure(error.code, str(error)) | problems_of(error)
            context.print_json({**result, "notices": notices})
        else:
            _warn(error.warnings)
            click.echo(error.render())
        raise SystemExit(BAD_CONFIG) from None
    if not context.json:
        _warn(warnings)
    context.print_result(
        {"ok": True, "file": name or None, "notices": list(map(problem_as_json, warnings))},
        f"{name} is valid" if name else "no config file; the defaults are valid",
    )


def _warn(warnings: Iterable[ConfigProblem]) -> None:
    for one in warnings:
        click.echo(one.render(), err=True)


def _trial_notices(loaded: LoadedConfig) -> tuple[ConfigProblem, ...]:
    """Returns the warnings. Raises ConfigInvalid for errors that only a start finds."""
    from gateway.app.doctor import TRIALS  # noqa: PLC0415  # it imports the whole gateway

    found = [finding for check in TRIALS for finding in check(loaded.config)]
    # A taken port is no error of the configuration: it may be free at the start.
    errors = [one for one in found if one.severity == "error" and one.id != "network.port"]
    notices = [
        *loaded.config.notices,
        *(ConfigFinding(o.id, o.place, o.message, o.fix) for o in found if o not in errors),
    ]
    if errors:
        refused = [ConfigFinding(Code.REFUSED_AT_START, o.place, o.message, o.fix) for o in errors]
        raise build_error(refused, loaded.document, notices=notices)
    return locate(notices, loaded.document)


@config.command()
@click.pass_obj
def show(context: CliContext) -> None:
    loaded = _load(context)
    rows = effective(loaded)
    file = str(loaded.config.origin) if loaded.config.origin else None
    context.print_result({"file": file, "values": list(map(_as_json, rows))}, *_lines(rows))


@config.command()
@click.argument("key", metavar="PATH")
@click.pass_obj
def get(context: CliContext, key: str) -> None:
    rows = effective(_load(context))
    key = _by_place(key, rows)
    exact = next((row for row in rows if row.key == key), None)
    if exact is None:
        below = [row for row in rows if row.key.startswith(f"{key}.")]
        if not below:
            near = nearest(key, (row.key for row in rows))
            hint = f"did you mean {near}?" if near else "`exogate config show` lists all"
            raise click.ClickException(f"there is no key {key}; {hint}")
        exact = _token_limit(key, below)
    if exact is None:
        context.print_result(list(map(_as_json, below)), *_lines(below))
    else:
        value = "" if exact.value is None else exact.value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        context.print_result(_as_json(exact), text)


def _token_limit(key: str, below: Sequence[Row]) -> Row | None:
    """Returns a limit that has no USD as one row: budgets.daily = 200000."""
    values = {row.key.removeprefix(f"{key}."): row for row in below}
    is_limit = values.keys() == {"tokens", "usd"} and values["usd"].value is None
    return replace(values["tokens"], key=key) if is_limit else None


def _by_place(key: str, rows: Iterable[Row]) -> str:
    """Replaces the ids of items by their places: agents.main.model becomes agents.0.model."""
    named = {
        (above, row.value): place
        for row in rows
        for above, place, last in [([""] * 3 + row.key.rsplit(".", 2))[-3:]]
        if place.isdecimal() and last in NAMED_BY
    }
    path: list[str] = []
    for part in parse_path(key):
        path.append(named.get((dotted(tuple(path)), part), part))
    return dotted(tuple(path))


@config.command("set")
@click.argument("key", metavar="PATH")
@click.argument("value", required=False)
@click.option(
    "--secret",
    is_flag=True,
    help="Write the value to a secret file; the configuration refers to the file.",
)
@yes_option
@click.pass_obj
def set_key(context: CliContext, key: str, value: str | None, *, secret: bool, yes: bool) -> None:
    path, edit = parse_path(key), Edit.begin(context)
    if secret:
        _set_secret(edit, path, value, yes=yes)
        return
    if value is None:
        raise click.UsageError("Missing argument 'VALUE'.")
    after = with_value(edit.before, path, read_value(path, value))
    edit.apply(after, nothing=f"{key} has that value already", yes=yes, key=dotted(path))


def _set_secret(edit: Edit, path: tuple[str, ...], value: str | None, *, yes: bool) -> None:
    """Moves a secret to its file. Without `value` it takes the one in the configuration, or asks for it."""
    held = value_at(edit.before, path)
    if isinstance(held, dict) and "value" in held:
        path, held = (*path, "value"), held["value"]
    literal = held if isinstance(held, str) and "${" not in held else None
    secret = value or literal or click.prompt("Secret", hide_input=sys.stdin.isatty(), err=True)
    name = secret_name(path)
    edit = edit.with_secret(name, secret)
    after = with_value(edit.before, path, f"${{file:{name}}}")
    note = f"The secret goes to {edit.inputs.name(edit.inputs.home / FOLDER / name)} (mode 0600)."
    edit.apply(after, note, nothing="", yes=yes, key=dotted(path), secret=name)


@config.command()
@click.argument("key", metavar="PATH")
@yes_option
@click.pass_obj
def unset(context: CliContext, key: str, *, yes: bool) -> None:
    path, edit = parse_path(key), Edit.begin(context)
    after = with_value(edit.before, path, None)
    edit.apply(after, nothing=f"the file does not set {key}", yes=yes, key=dotted(path))


@config.command()
def schema() -> None:
    click.echo(json.dumps(json_schema(), indent=2))


@config.command()
@click.pass_obj
def path(context: CliContext) -> None:
    found = config_path(context)
    where = str(found or usual_path())
    context.print_result({"path": where}, where)
    if found is None:
        click.echo("no file there or at ./config.toml: the defaults are in force", err=True)


def _load(context: CliContext) -> LoadedConfig:
    return read(config_path(context), read_inputs(context))


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        if row.value is not None:
            value = json.dumps(row.value, ensure_ascii=False)
            yield f"{row.key} = {value}  # {row.origin}"


def _as_json(row: Row) -> dict[str, object]:
    return {"key": row.key, "value": row.value, "origin": row.origin}


# -- reload


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the changes; change nothing.")
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --dry-run: read this file instead.",
)
@click.pass_obj
def reload(context: CliContext, file: Path | None, *, dry_run: bool) -> None:
    if file is not None and not dry_run:
        raise click.UsageError("--file needs --dry-run: only the file in use can be reloaded")
    given: dict[str, object] = {"dry_run": True} if dry_run else {}
    if file is not None:
        given["path"] = os.path.abspath(file)  # noqa: PTH100  # the gateway reads through links
    result = ask(context, "config.reload", given, RELOAD_S)
    if context.json:
        context.print_json(result)
    else:
        for line in _reload_lines(result, is_dry=dry_run):
            click.echo(line, err=bool(result["errors"]))
    if result["errors"]:
        raise SystemExit(BAD_CONFIG)


def _reload_lines(result: Mapping[str, Any], *, is_dry: bool) -> Iterator[str]:
    for error in result["errors"]:
        yield ConfigProblem(**{"line": 0, "column": 0, **error}).render()
    number, changed = result["generation"], result["changed"]
    if result["errors"]:
        yield f"Nothing was changed: generation {number} stays in force."
        return
    verb = "would change" if is_dry else "changed"
    yield from (f"{verb}: {key}" for key in changed)
    yield from (f"needs a restart: {key}" for key in result["restart_needed"])
    if not changed:
        yield f"Nothing to reload: generation {number} is in force."
    elif not is_dry:
        yield f"Generation {number} is in force."
