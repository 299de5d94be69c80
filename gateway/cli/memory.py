"""`exogate memory search|why|history|as-of|neighbours|forget|export`."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.link import Link, linked
from gateway.domain.ids import SessionKey
from gateway.host.terminal import one_line

PAGE = 50
MOST_OTHERS = 5  # conversations that are offered
limited = click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)


@dataclass(frozen=True, slots=True)
class Somebody:
    session: str | None
    person: str | None

    def found(self, link: Link) -> Mapping[str, object]:
        """Whoever chats from the command line, unless somebody is named."""
        if self.session is not None and self.person is not None:
            raise click.UsageError("name --session or --person, not both")
        if self.person is not None:
            return {"person": SessionKey.parse(self.person)._asdict()}
        if self.session is not None:
            return {"session_key": self.session}
        route = link.call("route.explain", channel="websocket", account="local")
        key = str(route["session_key"])
        found = link.call("session.list", limit=MOST_OTHERS + 1)
        others = [one["session_key"] for one in found["sessions"] if one["session_key"] != key]
        click.echo(f"Shown is the memory of {key}: you, at the command line.", err=True)
        if others:
            has_more = found["more"] or len(others) > MOST_OTHERS
            more = " and more (exogate session list)" if has_more else ""
            shown = ", ".join(others[:MOST_OTHERS])
            click.echo(f"Others, by --session or --person: {shown}{more}", err=True)
        else:
            click.echo("There are no other conversations yet.", err=True)
        return {"session_key": key}


def of_somebody(command: Callable[..., None]) -> Callable[..., None]:
    """Gives it the options that say who is meant."""

    @click.option("--session", metavar="KEY", help="What that conversation may know.")
    @click.option("--person", metavar="KEY", help="AGENT:CHANNEL:ACCOUNT:PEER, all of theirs.")
    @wraps(command)
    def asked(*given: object, session: str | None, person: str | None, **more: object) -> None:
        command(*given, whose=Somebody(session, person), **more)

    return asked


@click.group()
def memory() -> None:
    """Search, export and erase facts about people. Without --session or --person: about you."""


@memory.command()
@click.argument("query")
@of_somebody
@click.option("--kind", type=click.Choice(["fact", "turn"]), help="Only these.")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True)
@click.pass_obj
def search(context: CliContext, query: str, whose: Somebody, kind: str | None, limit: int) -> None:
    """Find facts and messages, the best match first."""
    with linked(context) as link:
        kinds = [kind] if kind else None
        named = whose.found(link)
        found = link.call("memory.search", query=query, kinds=kinds, limit=limit, **named)
    if context.json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for one in found["results"]:
        turn = f"{one['at'][:10]}  {one.get('said_by')}: {one['text']}"
        shown = _line(one["fact"]) if "fact" in one else turn
        row = f"{one['score']:6.3f}  {one['kind']:4}  {shown}   ({one['why']})"
        click.echo(one_line(row))


@memory.command()
@click.argument("fact_id")
@click.pass_obj
def why(context: CliContext, fact_id: str) -> None:
    """Show the source of a fact: message, time and author."""
    with linked(context) as link:
        told = link.call("memory.why", fact_id=fact_id)
    if context.json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    click.echo(_line(told["fact"]))
    learned_in = told["fact"]["session_key"] or "another user's conversation"
    click.echo(f"in the memory of {told['fact']['scope']}")
    click.echo(f"learned {told['fact']['learned_at']} in {learned_in}")
    for one in told["sources"]:
        row = f"{one['at']}  {one['said_by']} in {one['message_id']}: {one['quote']}"
        click.echo(one_line(row))
    if hidden := told["hidden"]:
        click.echo(f"{hidden} more in conversations that you may not read")


@memory.command()
@click.argument("subject")
@click.argument("predicate", required=False)
@of_somebody
@limited
@click.pass_obj
def history(context: CliContext, /, whose: Somebody, **asked: object) -> None:
    """Show all facts about SUBJECT, superseded ones too. `user` is the person."""
    _show(context, "memory.history", whose, asked)


@memory.command("as-of")
@click.argument("at")
@click.option("--known-at", metavar="TIME", help="As it was believed then.")
@click.option("--subject")
@of_somebody
@limited
@click.pass_obj
def as_of(context: CliContext, /, whose: Somebody, **asked: object) -> None:
    """Show what was true at a time. AT is today, a day (2026-03-01: its end) or a time."""
    _show(context, "memory.as_of", whose, asked)


@memory.command()
@click.argument("subject")
@click.option("--hops", type=click.IntRange(1, 3), default=2, show_default=True)
@of_somebody
@limited
@click.pass_obj
def neighbours(context: CliContext, /, whose: Somebody, **asked: object) -> None:
    """Show facts connected to SUBJECT, the nearest first."""
    _show(context, "memory.neighbours", whose, asked)


@memory.command()
@click.argument("fact_id", required=False)
@of_somebody
@click.option("--yes", "-y", is_flag=True, help="Really erase; else only count.")
@click.pass_obj
def forget(context: CliContext, fact_id: str | None, whose: Somebody, *, yes: bool) -> None:
    """Erase a fact, a person or a session for good."""
    if [fact_id, whose.session, whose.person].count(None) != 2:
        raise click.UsageError("name a FACT_ID, --session or --person")
    with linked(context) as link:
        which = {"fact_id": fact_id} if fact_id else whose.found(link)
        if fact_id:
            scope = link.call("memory.why", fact_id=fact_id)["fact"]["scope"]
            click.echo(f"It is in the memory of {scope}.", err=True)
        told = link.call("memory.forget", dry_run=not yes, **which)
    messages = f" and {told['messages']} messages" if "messages" in told else ""
    what = f"{told['count']} facts{messages}"
    if context.json:
        click.echo(json.dumps(told))
    elif yes:
        click.echo(f"{what} are erased")
    else:
        click.echo(f"{what} would be erased; add --yes to do it")


@memory.command()
@of_somebody
@click.pass_obj
def export(context: CliContext, whose: Somebody) -> None:
    """Print all facts with their sources as JSON lines. Superseded facts are included."""
    with linked(context) as link:
        for one in _every(link, whose.found(link)):
            told = link.call("memory.why", fact_id=one["id"])
            click.echo(
                json.dumps(
                    {**one, "sources": told["sources"], "hidden": told["hidden"]},
                    ensure_ascii=False,
                )
            )


def _show(context: CliContext, method: str, whose: Somebody, asked: Mapping[str, object]) -> None:
    with linked(context) as link:
        found = link.call(method, **asked, **whose.found(link))
    if context.json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for one in found["facts"]:
        click.echo(_line(one))


def _every(link: Link, whose: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
    """Page by page, so that every answer fits into a frame."""
    skip = 0
    while page := link.call("memory.history", limit=PAGE, skip=skip, **whose)["facts"]:
        yield from page
        skip += len(page)


def _line(fact: Mapping[str, Any]) -> str:
    since, until = fact["valid_from"], fact["valid_to"]
    dates = [f"since {since[:10]}"] if since != until else []  # else nobody said since when
    dates += [f"until {until[:10]}"] if until else []
    ended = "  superseded" if fact["superseded_at"] else ""
    return one_line(
        f"{fact['id']}  {fact['subject']} {fact['predicate']} {fact['object']}"
        f"   {' '.join(dates)}, told {fact['learned_at'][:10]}{ended}"
    )
