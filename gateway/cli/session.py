"""`exogate session list|show|export`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.link import Link, linked

PAGE = 200


@click.group()
def session() -> None:
    """Look at conversations."""


@session.command("list")
@click.option("--agent")
@click.option("--channel")
@click.option("--query", help="Part of the session key.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.pass_obj
def list_sessions(
    context: CliContext, agent: str | None, channel: str | None, query: str | None, limit: int
) -> None:
    """List sessions, the most recently used first."""
    with linked(context) as link:
        page = link.call("session.list", agent=agent, channel=channel, query=query, limit=limit)
    if context.json:
        click.echo(json.dumps(page, ensure_ascii=False))
        return
    for one in page["sessions"]:
        used = one["token_usage"]["input_tokens"] + one["token_usage"]["output_tokens"]
        click.echo(
            f"{one['updated_at'][:19]}Z  {one['message_count']:6} messages  {used:9} tokens  "
            f"{one['session_key']}"
        )
    if page["more"]:
        click.echo(f"… and more; see --limit, --query (shown: {len(page['sessions'])})", err=True)


@session.command()
@click.argument("key")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True)
@click.pass_obj
def show(context: CliContext, key: str, limit: int) -> None:
    """Show the end of a conversation."""
    with linked(context) as link:
        page = link.call("chat.history", session_key=key, limit=limit)
    if context.json:
        click.echo(json.dumps(page, ensure_ascii=False))
        return
    for one in page["messages"]:
        calls = "".join(
            f" [{call['function']['name']} {call['function']['arguments']}]"
            for call in one["tool_calls"] or ()
        )
        click.echo(f"{one['created_at'][:19]}Z {one['role']:9} {one['content']}{calls}")


@session.command()
@click.argument("key")
@click.pass_obj
def export(context: CliContext, key: str) -> None:
    """Write a whole conversation as JSON lines, oldest first: the session, then its messages."""
    with linked(context) as link:
        click.echo(json.dumps(link.call("session.get", session_key=key), ensure_ascii=False))
        for message in _all_messages(link, key):
            click.echo(json.dumps(message, ensure_ascii=False))
            if message.get("truncated"):
                click.echo(f"exogate: {message['id']} is too long and was cut", err=True)


def _all_messages(link: Link, key: str) -> Iterator[Mapping[str, Any]]:
    pages: list[list[Mapping[str, Any]]] = []
    before: str | None = None
    while True:
        page = link.call("chat.history", session_key=key, before=before, limit=PAGE)
        pages.append(page["messages"])
        if not page["more"]:
            break
        before = page["messages"][0]["id"]
    for messages in reversed(pages):
        yield from messages
