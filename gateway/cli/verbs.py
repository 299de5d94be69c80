"""Verbs made from the API's table of methods: the parameters give the options, and one renderer prints every result."""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import MISSING, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from gateway.api.declarations import Check, Method, Verb
from gateway.api.methods import METHODS
from gateway.cli.command import FAILED, CliContext
from gateway.domain.text import one_line

ROWS: Mapping[str, tuple[Method, Verb]] = {
    one.verb.name or one.name.replace(".", " ").replace("_", "-"): (one, one.verb)
    for one in METHODS
    if one.verb
}
OPTIONS = {"session_key": "session", "limit": "limit", "kinds": "kind"}
WATCH = "is_watched"
LONGEST_CELL = 160  # characters of an object, such as the detail of an audit entry
_FRACTION = re.compile(r"(?<=T\d\d:\d\d:\d\d)\.\d+(?=Z$)")  # fractions of a second


def command_of(name: str) -> click.Command:
    """Returns the click command of a row."""
    method, verb = ROWS[name]
    arguments = verb.takes.split()
    hints = get_type_hints(method.params, include_extras=True)
    params: list[click.Parameter] = []
    for one, default in method.params.defaults:
        type_, is_repeated, text = _type_of(hints[one])
        if one in arguments:
            params.append(click.Argument([one], type=type_, required=default is MISSING))
            continue
        # To click a default of None is a value, so that `required` would have no effect.
        kept: dict[str, Any] = {"default": default} if isinstance(default, int | str) else {}
        flags = [f"--{OPTIONS.get(one, one).rstrip('_').replace('_', '-')}", one]
        params.append(
            click.Option(
                ["-n", *flags] if one == "limit" else flags,
                type=type_,
                is_flag=type_ is bool,
                multiple=is_repeated,
                required=default is MISSING,
                show_default=type_ is not bool,
                help=text,
                **kept,
            )
        )
    if verb.watch_s:
        text = f"Repeat every {verb.watch_s:g} seconds until Ctrl+C."
        params.append(click.Option(["--watch", WATCH], is_flag=True, help=text))
    order = {name: place for place, name in enumerate(arguments)}
    params.sort(key=lambda param: order.get(str(param.name), -1))

    def callback(**given: object) -> None:
        from gateway.cli.link import ask  # noqa: PLC0415  # help needs no connection

        context = click.get_current_context().find_object(CliContext) or CliContext()
        is_watched = given.pop(WATCH, False)
        asked = {one: value for one, value in given.items() if value not in (None, (), False)}
        with suppress(KeyboardInterrupt) if is_watched else nullcontext():
            while is_watched:
                show(context, ask(context, method, asked, verb.answer_s), replace(verb, holds=""))
                click.echo()
                time.sleep(verb.watch_s)
            show(context, ask(context, method, asked, verb.answer_s), verb)

    return click.Command(
        name.rpartition(" ")[2], callback=callback, params=params, help=method.help
    )


def _type_of(hint: Any) -> tuple[Any, bool, str | None]:
    """Returns the click type of a parameter, whether it may be repeated, and its help."""
    notes: list[Any] = []
    while (origin := get_origin(hint)) in {Annotated, Union, UnionType}:
        hint, *more = [one for one in get_args(hint) if one is not NoneType]
        if origin is Annotated:
            notes += more
        elif more:
            hint = str  # a union of times and words is read as text
    text = next((one for one in notes if isinstance(one, str)), None)
    if origin in {tuple, list}:
        return _type_of(get_args(hint)[0])[0], True, text
    if origin is Literal:
        return click.Choice(get_args(hint)), False, text
    if hint is int:
        return _range_of(notes), False, text
    return hint if hint in {float, bool} else str, False, text


def _range_of(notes: Sequence[Any]) -> click.IntRange:
    limits = next((one.limits for one in notes if isinstance(one, Check)), {})
    return click.IntRange(limits.get("ge"), limits.get("le"))  # type: ignore[arg-type]  # the limits of an int are ints


def show(context: CliContext, result: Any, verb: Verb) -> None:
    """Prints a result; exits with 1 if its field `verb.holds` is false."""
    failed = verb.holds and not result[verb.holds]
    if context.json:
        context.print_json(result[verb.json] if verb.json else result)
    else:
        lines = list(render(result, verb.columns))
        click.echo("\n".join(lines) or verb.empty, err=not lines)
        if isinstance(result, Mapping) and result.get("more"):
            click.echo("there are more; see the options", err=True)
        if failed and (why := result.get("why")):
            click.echo(why, err=True)
    if failed:
        sys.exit(FAILED)


def render(result: Any, columns: str = "") -> Iterator[str]:
    """Yields the fields of a result as rows, then its first lists as tables."""
    result = {"": result} if isinstance(result, list) else result
    lists = [name for name, value in result.items() if isinstance(value, list)]
    tables = dict(zip(lists, filter(None, columns.split("|")), strict=False))
    fields = {name: value for name, value in result.items() if name not in {*tables, "more"}}
    rows = [(name.replace("_", " "), value) for name, value in _flat(fields)]
    wide = max((len(name) for name, _ in rows), default=0)
    yield from (f"{name:{wide}}   {cell(value)}".rstrip() for name, value in rows)
    has_more = bool(rows)
    for name, shown in tables.items():
        if result[name]:
            yield from [""] * has_more
            yield from table(result[name], shown.split())
            has_more = True


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a table with a head. Leaves out a column that is empty in every row. The column `soul.path` has
    the key `path` of the object `soul`."""
    cells = []
    for name in columns:
        outer, _, inner = name.partition(".")
        values = [(row.get(outer) or {}).get(inner) if inner else row.get(outer) for row in rows]
        cells.append([outer.replace("_", " ").upper(), *map(cell, values)])
    shown = [column for column in cells if len(column) == 1 or {*column[1:]} != {"-"}]
    widths = [max(map(len, column)) for column in shown]
    for row in zip(*shown, strict=True):
        yield "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()


def cell(value: Any) -> str:
    """Renders a value on one line."""
    if value in (None, "", [], {}):
        return "-"
    match value:
        case bool():
            return "yes" if value else "no"
        case str():
            return one_line(_FRACTION.sub("", value))
        case list():
            return ", ".join(map(_brief, value))
        case dict():
            text = ", ".join(f"{name} {_brief(one)}" for name, one in value.items())
            return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
    return str(value)


def _brief(value: Any) -> str:
    """Renders an item of a list by its name and state."""
    if not isinstance(value, Mapping):
        return cell(value) if isinstance(value, str | None) else one_line(json.dumps(value))
    name = next((value[key] for key in ("name", "id", "scope") if key in value), None)
    if name is None:
        return one_line(json.dumps(value, ensure_ascii=False))
    about = [value[key] for key in ("state", "why") if value.get(key)]
    return one_line(f"{name} ({', '.join(about)})" if about else str(name))
