"""`exogate config`: check, show and explain the configuration."""

import json
from collections.abc import Iterable
from pathlib import Path

import click

from gateway.cli.context import (
    CliContext,
    as_json,
    config_path,
    problem_as_json,
    refuse,
    surroundings,
)
from gateway.cli.ending import BAD_CONFIG
from gateway.config.document import placed, warned
from gateway.config.load import LoadedConfig, Row, effective, read
from gateway.config.problems import Code, ConfigFinding, ConfigInvalid, ConfigProblem
from gateway.config.schema import json_schema
from gateway.domain.text import nearest


@click.group("config")
def config() -> None:
    """Check and show the configuration."""


@config.command()
@click.pass_obj
def validate(context: CliContext) -> None:
    """Check the configuration; list every error."""
    try:
        loaded = _load(context)
        name, warnings = loaded.document.name, _tried(loaded)
    except ConfigInvalid as error:
        if context.json:
            told = {**as_json(error), "notices": [problem_as_json(one) for one in error.warnings]}
            click.echo(json.dumps(told, ensure_ascii=False))
        else:
            _warn(error.warnings)
            click.echo(error.render())
        raise SystemExit(BAD_CONFIG) from None
    if context.json:
        noted = [problem_as_json(one) for one in warnings]
        told = {"ok": True, "file": name or None, "notices": noted}
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    _warn(warnings)
    click.echo(f"{name} is valid" if name else "no config file; the defaults are valid")


def _warn(warnings: Iterable[ConfigProblem]) -> None:
    for one in warnings:
        click.echo(one.render(), err=True)


def _tried(loaded: LoadedConfig) -> tuple[ConfigProblem, ...]:
    """What is no error. Raises ConfigInvalid for what a start would refuse besides."""
    from gateway.cli.checks import TRIALS  # noqa: PLC0415  # the whole gateway, which reading does without

    found = [finding for check in TRIALS for finding in check(loaded.config)]
    # Who listens there now may be gone at the start: the configuration is not wrong by that.
    errors = [one for one in found if one.severity == "error" and one.id != "network.port"]
    notices = [
        *loaded.config.notices,
        *(ConfigFinding(o.id, o.place, o.message, o.fix) for o in found if o not in errors),
    ]
    if errors:
        wrong = [ConfigFinding(Code.REFUSED_AT_START, o.place, o.message, o.fix) for o in errors]
        raise placed(wrong, loaded.document, notices=notices)
    return warned(notices, loaded.document)


@config.command()
@click.pass_obj
def show(context: CliContext) -> None:
    """Show every value in force and its source."""
    loaded, rows = _rows(context)
    if context.json:
        values = [_row_as_json(row) for row in rows]
        file = str(loaded.config.origin) if loaded.config.origin else None
        click.echo(json.dumps({"file": file, "values": values}, ensure_ascii=False))
        return
    for row in rows:
        if row.value is not None:
            click.echo(_line(row))


@config.command()
@click.argument("key")
@click.pass_obj
def get(context: CliContext, key: str) -> None:
    """Show the value of KEY, or of all keys below it."""
    _, rows = _rows(context)
    exact = next((row for row in rows if row.key == key), None)
    below = [row for row in rows if row.key.startswith(f"{key}.")]
    if exact is None and not below:
        raise click.ClickException(_no_such_key(key, rows))
    if exact is not None:
        shown = json.dumps(_row_as_json(exact)) if context.json else _bare(exact.value)
    elif context.json:
        shown = json.dumps([_row_as_json(row) for row in below])
    else:
        shown = "\n".join(_line(row) for row in below if row.value is not None)
    click.echo(shown)


def _no_such_key(key: str, rows: Iterable[Row]) -> str:
    near = nearest(key, (row.key for row in rows))
    meant = f"did you mean {near}?" if near else "`exogate config show` lists all"
    return f"there is no key {key}; {meant}"


@config.command()
def schema() -> None:
    """Print the JSON Schema of config.toml for editors."""
    click.echo(json.dumps(json_schema(), indent=2))


@config.command()
@click.pass_obj
def path(context: CliContext) -> None:
    """Print the path of the file in use; exit 1 if there is none."""
    found = config_path(context)
    if found:
        click.echo(json.dumps({"path": str(found)}) if context.json else str(found))
    else:
        home = Path.home() / ".config" / "exogate" / "config.toml"
        raise click.ClickException(f"there is no ./config.toml and no {home}: defaults are used")


def _load(context: CliContext) -> LoadedConfig:
    return read(config_path(context), surroundings(context))


def _rows(context: CliContext) -> tuple[LoadedConfig, tuple[Row, ...]]:
    try:
        loaded = _load(context)
    except ConfigInvalid as error:
        refuse(context, error)
    return loaded, effective(loaded)


def _line(row: Row) -> str:
    return f"{row.key} = {json.dumps(row.value, ensure_ascii=False)}  # {row.origin}"


def _bare(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _row_as_json(row: Row) -> dict[str, object]:
    return {"key": row.key, "value": row.value, "origin": row.origin}
