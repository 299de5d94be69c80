"""`exogate config` and `exogate budget set`: check, show and explain the configuration, and set a limit."""

import json
from collections.abc import Iterable

import click

from gateway.cli.command import BAD_CONFIG, CliContext, failure, problem_as_json, problems_of
from gateway.cli.configuration import Edit, agree, config_path, surroundings, usual_path
from gateway.config import editing
from gateway.config.document import placed, warned
from gateway.config.load import LoadedConfig, Row, effective, read
from gateway.config.problems import Code, ConfigFinding, ConfigInvalid, ConfigProblem
from gateway.config.schema import json_schema
from gateway.domain.text import nearest


@click.group()
def config() -> None: ...


@click.group()
def budget() -> None: ...


@budget.command("set")
@click.argument("scope", metavar="SCOPE")
@click.argument("tokens", type=click.IntRange(0, 2**53))
@agree
@click.pass_obj
def set_(context: CliContext, scope: str, tokens: int, *, yes: bool) -> None:
    edit = Edit.begin(context)
    after = editing.with_budget(edit.before, scope, tokens)
    nothing = f"{scope} has that limit already"
    edit.written(after, nothing=nothing, yes=yes, scope=scope, tokens=tokens)


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
    from gateway.cli.doctor import TRIALS  # noqa: PLC0415  # the whole gateway, which reading does without

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
    loaded = _load(context)
    rows = effective(loaded)
    if context.json:
        file = str(loaded.config.origin) if loaded.config.origin else None
        context.tell({"file": file, "values": [_as_json(row) for row in rows]})
    else:
        _show_rows(context, rows)


@config.command()
@click.argument("key")
@click.pass_obj
def get(context: CliContext, key: str) -> None:
    rows = effective(_load(context))
    exact = next((row for row in rows if row.key == key), None)
    if exact is None:
        below = [row for row in rows if row.key.startswith(f"{key}.")]
        if not below:
            raise click.ClickException(f"there is no key {key}; {_meant(key, rows)}")
        _show_rows(context, below)
    elif context.json:
        context.tell(_as_json(exact))
    elif exact.value is None or isinstance(exact.value, str):
        click.echo(exact.value or "")
    else:
        click.echo(json.dumps(exact.value, ensure_ascii=False))


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
    if context.json:
        context.tell({"path": where})
    else:
        click.echo(where)
    if found is None:
        click.echo(
            "there is no file, neither there nor at ./config.toml: defaults are used", err=True
        )


def _load(context: CliContext) -> LoadedConfig:
    return read(config_path(context), surroundings(context))


def _show_rows(context: CliContext, rows: Iterable[Row]) -> None:
    if context.json:
        context.tell([_as_json(row) for row in rows])
        return
    for row in rows:
        if row.value is not None:
            value = json.dumps(row.value, ensure_ascii=False)
            click.echo(f"{row.key} = {value}  # {row.origin}")


def _as_json(row: Row) -> dict[str, object]:
    return {"key": row.key, "value": row.value, "origin": row.origin}
