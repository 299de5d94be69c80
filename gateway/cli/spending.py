"""`exogate budget`, `exogate usage` and `exogate token`: limits of spending, what was spent, and tokens for programs."""

import csv
import sys
from collections.abc import Mapping
from typing import Any, get_args

import click

from gateway.cli.command import CliContext, ParsedType
from gateway.cli.configuration import Edit, agree
from gateway.cli.link import ask
from gateway.cli.verbs import table
from gateway.config import editing
from gateway.domain.budgets import Grouping
from gateway.domain.ids import EPOCH
from gateway.domain.text import count_of, moment_in, no_formula, one_line

PERIODS = {"day": "daily", "month": "monthly", "session": "session"}
FIGURES = ("calls", "input_tokens", "output_tokens", "cached_tokens", "cost_usd")


def _time(text: str) -> str:
    """A time that the gateway reads by its own clock; here only its form is checked. Raises ValueError."""
    moment_in(text, EPOCH)
    return text


COUNT = ParsedType("tokens", lambda text: count_of(text.removeprefix("+")))  # 500000, 500k, 2M
TIME = ParsedType("time", _time)


@click.group()
def budget() -> None: ...


@budget.command("set")
@click.argument("scope", metavar="SCOPE")
@click.argument("tokens", type=COUNT)
@agree
@click.pass_obj
def set_(context: CliContext, scope: str, tokens: int, *, yes: bool) -> None:
    edit = Edit.begin(context)
    after = editing.with_budget(edit.before, scope, tokens)
    nothing = f"{scope} has that limit already"
    edit.written(after, nothing=nothing, yes=yes, scope=scope, tokens=tokens)


@budget.command("raise")
@click.argument("scope", metavar="SCOPE")
@click.argument("tokens", type=COUNT, metavar="+N")
@click.option("--today", is_flag=True, help="Until the end of the day (UTC).")
@click.pass_obj
def raise_(context: CliContext, scope: str, tokens: int, *, today: bool) -> None:
    if not today:
        raise click.UsageError("add --today; `exogate budget set` changes a limit for good")
    if not tokens:
        raise click.UsageError("raise it by 1 token at least")
    told = ask(context, "budget.raise", {"scope": scope, "by": tokens, "today": True})
    context.print_result(
        told, f"{one_line(scope)} is raised by {told['raised_by']:,} tokens until {told['until']}"
    )


@click.command()
@click.option("--by", type=click.Choice(get_args(Grouping)), default="agent", show_default=True)
@click.option("--since", type=TIME, help="90s, 12h, 7d or a time; absent: from the beginning.")
@click.option("--until", type=TIME, help="The same; exclusive.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, without the total.")
@click.pass_obj
def usage(
    context: CliContext, by: str, since: str | None, until: str | None, *, as_csv: bool
) -> None:
    given = {"by": by, "since": since, "until": until}
    told = ask(context, "usage.report", {name: one for name, one in given.items() if one})
    if context.json:
        context.print_json(told)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow((by, *FIGURES))
        writer.writerows(
            [no_formula(row[by]), *(row[one] for one in FIGURES)] for row in told["rows"]
        )
    else:
        rows = [*told["rows"], {by: "total", **told["total"]}]
        click.echo("\n".join(table(rows, (by, *FIGURES))))


@click.group()
def token() -> None: ...


@token.command()
@click.argument("name")
@click.option("--scopes", default="chat", show_default=True, help="With commas between them.")
@click.option("--agent", "agents", multiple=True, help="Reach this agent only. May be repeated.")
@click.option("--expires", type=TIME, help="45s, 12h, 30d or a time.")
@click.option("--budget", "limit", help="Tokens of models that it may use: 100k/day, 2M/month.")
@click.option("--inherit", is_flag=True, help="Give it what a revoked token of that name owns.")
@click.pass_obj
def create(context: CliContext, /, name: str, scopes: str, limit: str | None, **more: Any) -> None:
    given = {one: value for one, value in more.items() if value}
    given |= {"name": name, "scopes": [one for one in map(str.strip, scopes.split(",")) if one]}
    given |= {"budget": _budget(limit)} if limit else {}
    told = ask(context, "token.create", given)
    if context.json:
        context.print_json(told)
        return
    click.echo(told["token"])
    click.echo(_about(told), err=True)


def _budget(text: str) -> dict[str, int]:
    """Of `100k/day`, or several with commas between them. Raises BadParameter."""
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


def _about(told: Mapping[str, Any]) -> str:
    """What is said beside the token."""
    lines = [f"This is the token of {told['name']}. It is shown only now."]
    lines.append(f"scopes   {', '.join(told['scopes'])}")
    if told["agents"]:
        lines.append(f"agents   {', '.join(told['agents'])}")
    if told["budget"]:
        each = (f"{count:,} {name}" for name, count in told["budget"].items())
        lines.append(f"budget   {', '.join(each)}")
    lines.append(f"expires  {told['expires_at'] or 'never'}")
    return "\n".join(lines)
