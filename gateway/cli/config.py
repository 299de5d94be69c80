"""`exogate config` and `exogate reload`: check, show and change the configuration, and put it into force."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gateway.cli.command import BAD_CONFIG, CliContext, failure, problem_as_json, problems_of
from gateway.cli.configuration import RELOAD_S, Edit, agree, config_path, read_inputs, usual_path
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
        name, warnings = loaded.document.name, _tried(loaded)
    except ConfigInvalid as error:
        if context.json:
            notices = [problem_as_json(one) for one in error.warnings]
            told = failure(error.code, str(error)) | problems_of(error)
            context.tell({**told, "notices": notices})
        else:
            _warn(error.warnings)
            click.echo(error.render())
        raise SystemExit(BAD_CONFIG) from None
    if context.json:
        noted = [problem_as_json(one) for one in warnings]
        context.tell({"ok": True, "file": name or None, "notices": noted})
        return
    _warn(warnings)
    click.echo(f"{name} is valid" if name else "no config file; the defaults are valid")


def _warn(warnings: Iterable[ConfigProblem]) -> None:
    for one in warnings:
        click.echo(one.render(), err=True)


def _tried(loaded: LoadedConfig) -> tuple[ConfigProblem, ...]:
    """What is no error. Raises ConfigInvalid for what a start would refuse besides."""
    from gateway.app.doctor import TRIALS  # noqa: PLC0415  # the whole gateway, which reading does without

    found = [finding for check in TRIALS for finding in check(loaded.config)]
    # Who listens there now may be gone at the start: the configuration is not wrong by that.
    errors = [one for one in found if one.severity == "error" and one.id != "network.port"]
    notices = [
        *loaded.config.notices,
        *(ConfigFinding(o.id, o.place, o.message, o.fix) for o in found if o not in errors),
    ]
    if errors:
        wrong = [ConfigFinding(Code.REFUSED_AT_START, o.place, o.message, o.fix) for o in errors]
        raise build_error(wrong, loaded.document, notices=notices)
    return locate(notices, loaded.document)


@config.command()
@click.pass_obj
def show(context: CliContext) -> None:
    loaded = _load(context)
    rows = effective(loaded)
    file = str(loaded.config.origin) if loaded.config.origin else None
    context.say({"file": file, "values": list(map(_as_json, rows))}, *_lines(rows))


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
            raise click.ClickException(f"there is no key {key}; {_meant(key, rows)}")
        exact = _as_a_number(key, below)
    if exact is None:
        context.say(list(map(_as_json, below)), *_lines(below))
    else:
        value = "" if exact.value is None else exact.value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        context.say(_as_json(exact), text)


def _as_a_number(key: str, below: Sequence[Row]) -> Row | None:
    """A limit in tokens alone is written as a number: budgets.daily = 200000."""
    values = {row.key.removeprefix(f"{key}."): row for row in below}
    is_limit = values.keys() == {"tokens", "usd"} and values["usd"].value is None
    return replace(values["tokens"], key=key) if is_limit else None


def _by_place(key: str, rows: Iterable[Row]) -> str:
    """A path with the places of items that it names by their id: agents.main.model is agents.0.model."""
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
    help="Keep it in a file of its own, to which the configuration refers.",
)
@agree
@click.pass_obj
def set_key(context: CliContext, key: str, value: str | None, *, secret: bool, yes: bool) -> None:
    path, edit = parse_path(key), Edit.begin(context)
    if secret:
        _keep(edit, path, value, yes=yes)
        return
    if value is None:
        raise click.UsageError("Missing argument 'VALUE'.")
    after = with_value(edit.before, path, read_value(path, value))
    edit.written(after, nothing=f"{key} has that value already", yes=yes, key=dotted(path))


def _keep(edit: Edit, path: tuple[str, ...], value: str | None, *, yes: bool) -> None:
    """The value is given, or stands in the file, or is asked for."""
    held = value_at(edit.before, path)
    if isinstance(held, dict) and "value" in held:
        path, held = (*path, "value"), held["value"]
    literal = held if isinstance(held, str) and "${" not in held else None
    secret = value or literal or click.prompt("Secret", hide_input=sys.stdin.isatty(), err=True)
    name = secret_name(path)
    edit = edit.keeping(name, secret)
    after = with_value(edit.before, path, f"${{file:{name}}}")
    note = f"The secret goes to {edit.inputs.name(edit.inputs.home / FOLDER / name)} (mode 0600)."
    edit.written(after, note, nothing="", yes=yes, key=dotted(path), secret=name)


@config.command()
@click.argument("key", metavar="PATH")
@agree
@click.pass_obj
def unset(context: CliContext, key: str, *, yes: bool) -> None:
    path, edit = parse_path(key), Edit.begin(context)
    after = with_value(edit.before, path, None)
    edit.written(after, nothing=f"the file does not set {key}", yes=yes, key=dotted(path))


def _meant(key: str, rows: Iterable[Row]) -> str:
    near = nearest(key, (row.key for row in rows))
    return f"did you mean {near}?" if near else "`exogate config show` lists all"


@config.command()
def schema() -> None:
    click.echo(json.dumps(json_schema(), indent=2))


@config.command()
@click.pass_obj
def path(context: CliContext) -> None:
    found = config_path(context)
    where = str(found or usual_path())
    context.say({"path": where}, where)
    if found is None:
        click.echo(
            "there is no file, neither there nor at ./config.toml: defaults are used", err=True
        )


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
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
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
        given["path"] = os.path.abspath(file)  # noqa: PTH100  # links stay, as the gateway reads them
    told = ask(context, "config.reload", given, RELOAD_S)
    if context.json:
        context.tell(told)
    else:
        for line in _told(told, is_tried=dry_run):
            click.echo(line, err=bool(told["errors"]))
    if told["errors"]:
        raise SystemExit(BAD_CONFIG)


def _told(told: Mapping[str, Any], *, is_tried: bool) -> Iterator[str]:
    for error in told["errors"]:
        place = {"line": 0, "column": 0, **error}
        yield ConfigProblem(**place).render()
    number, changed = told["generation"], told["changed"]
    if told["errors"]:
        yield f"Nothing was changed: generation {number} stays in force."
        return
    verb = "would change" if is_tried else "changed"
    yield from (f"{verb}: {key}" for key in changed)
    for key in told["restart_needed"]:
        yield f"needs a restart: {key}"
    if not changed:
        yield f"Nothing to reload: generation {number} is in force."
    elif not is_tried:
        yield f"Generation {number} is in force."
