"""`exogate budget`, `exogate usage` and `exogate token`: sets limits, sums up usage, and creates access tokens."""

import csv
import sys
from collections.abc import Mapping
from typing import Any, get_args

import click

from gateway.cli.command import CliContext, ParsedType
from gateway.cli.configuration import Edit, yes_option
from gateway.cli.link import ask
from gateway.cli.verbs import table
from gateway.config import editing
from gateway.domain.budgets import Grouping
from gateway.domain.ids import EPOCH
from gateway.domain.text import count_of, moment_in, no_formula, one_line

PERIODS = {"day": "daily", "month": "monthly", "session": "session"}
FIGURES = ("calls", "input_tokens", "output_tokens", "cached_tokens", "cost_usd")


def _check_time(text: str) -> str:
    """Checks the form of a time, which the gateway reads by its own clock. Raises ValueError."""
    moment_in(text, EPOCH)
    return text


COUNT = ParsedType("tokens", lambda text: count_of(text.removeprefix("+")))  # 500000, 500k, 2M
TIME = ParsedType("time", _check_time)


@click.group()
def budget() -> None: ...


@budget.command("set")
@click.argument("scope", metavar="SCOPE")
@click.argument("tokens", type=COUNT)
@yes_option
@click.pass_obj
def set_(context: CliContext, scope: str, tokens: int, *, yes: bool) -> None:
    edit = Edit.begin(context)
    after = editing.with_budget(edit.before, scope, tokens)
    nothing = f"{scope} has that limit already"
    edit.apply(after, nothing=nothing, yes=yes, scope=scope, tokens=tokens)


@budget.command("raise")
@click.argument("scope", metavar="SCOPE")
@click.argument("tokens", type=COUNT, metavar="+N")
@click.option("--today", is_flag=True, help="Until the end of the day (UTC).")
@click.pass_obj
def raise_(context: CliContext, scope: str, tokens: int, *, today: bool) -> None:
    if not today:
        raise click.UsageError("add --today; `exogate budget set` changes a limit permanently")
    if not tokens:
        raise click.UsageError("give at least 1 token")
    result = ask(context, "budget.raise", {"scope": scope, "by": tokens, "today": True})
    raised = f"raised by {result['raised_by']:,} tokens until {result['until']}"
    context.print_result(result, f"{one_line(scope)} is {raised}")


@click.command()
@click.option("--by", type=click.Choice(get_args(Grouping)), default="agent", show_default=True)
@click.option("--since", type=TIME, help="90s, 12h, 7d ago or a time; by default the beginning.")
@click.option("--until", type=TIME, help="The end, exclusive; by default now.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, without the total.")
@click.pass_obj
def usage(
    context: CliContext, by: str, since: str | None, until: str | None, *, as_csv: bool
) -> None:
    result = ask(context, "usage.report", {"by": by, "since": since, "until": until})
    columns = (by, *FIGURES)
    if as_csv and not context.json:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(
            [no_formula(row[by]), *(row[one] for one in FIGURES)] for row in result["rows"]
        )
        return
    rows = [*result["rows"], {by: "total", **result["total"]}]
    context.print_result(result, *table(rows, columns))


@click.group()
def token() -> None: ...


@token.command()
@click.argument("name")
@click.option("--scopes", default="chat", show_default=True, help="Separated by commas.")
@click.option("--agent", "agents", multiple=True, help="Reach only this agent; may be repeated.")
@click.option("--expires", type=TIME, help="45s, 12h, 30d from now or a time; by default never.")
@click.option("--budget", "limit", help="A limit of model tokens: 100k/day, 2M/month, 50k/session.")
@click.option("--inherit", is_flag=True, help="Take over what a revoked token of that name owns.")
@click.pass_obj
def create(context: CliContext, /, name: str, scopes: str, limit: str | None, **more: Any) -> None:
    asked = {one: value for one, value in more.items() if value}
    asked |= {"name": name, "scopes": [one for one in map(str.strip, scopes.split(",")) if one]}
    asked |= {"budget": _parse_budget(limit)} if limit else {}
    result = ask(context, "token.create", asked)
    context.print_result(result, result["token"])
    if not context.json:
        click.echo(_describe(result), err=True)


def _parse_budget(text: str) -> dict[str, int]:
    """Parses `100k/day`, or several limits separated by commas. Raises BadParameter."""
    found: dict[str, int] = {}
    for one in text.split(","):
        count, _, period = one.strip().partition("/")
        if (period or "day") not in PERIODS:
            raise click.BadParameter("write N/day, N/month or N/session", param_hint="--budget")
        try:
            found[PERIODS[period or "day"]] = count_of(count)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--budget") from None
    return found


def _describe(token: Mapping[str, Any]) -> str:
    limits = (f"{count:,} {name}" for name, count in (token["budget"] or {}).items())
    facts = {
        "scopes": ", ".join(token["scopes"]),
        "agents": ", ".join(token["agents"]),
        "budget": ", ".join(limits),
        "expires": token["expires_at"] or "never",
    }
    lines = [f"{name:8} {text}" for name, text in facts.items() if text]
    return "\n".join([f"The token of {token['name']}. It is not shown again.", *lines])
