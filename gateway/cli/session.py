"""`exogate session list|show|export|import|branch|checkout`."""

import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

import click

from gateway.cli.context import CliContext
from gateway.cli.link import Link, linked
from gateway.domain.sessions import ImportRefused

PAGE = 200
PART_CHARACTERS = 200_000


@click.group()
def session() -> None:
    """List, show, export, import and branch conversations."""


@session.command("list")
@click.option("--agent")
@click.option("--channel")
@click.option("--query", help="Part of the session key.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.pass_obj
def list_sessions(
    context: CliContext, agent: str | None, channel: str | None, query: str | None, limit: int
) -> None:
    """List conversations, the most recently used first."""
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
        if not page["messages"]:
            link.call("session.get", session_key=key)  # refused if there is no such session
    if context.json:
        click.echo(json.dumps(page, ensure_ascii=False))
        return
    for one in page["messages"]:
        calls = "".join(
            f" [{call['function']['name']} {call['function']['arguments']}]"
            for call in one["tool_calls"] or ()
        )
        said = f"{one['content']}{calls}".replace("\n", "\n    ")  # no line of it looks like a row
        click.echo(f"{one['created_at'][:19]}Z {one['role']:9} {said}")


@session.command()
@click.argument("key")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "oracle"]),
    default="jsonl",
    show_default=True,
    help="jsonl: the session, then its messages; oracle: its end as one OracleContext.",
)
@click.pass_obj
def export(context: CliContext, key: str, form: str) -> None:
    """Print a conversation as JSON, the oldest message first."""
    with linked(context) as link:
        if form == "oracle":
            shown = link.call("session.export", session_key=key)["context"]
            click.echo(json.dumps(shown, ensure_ascii=False, indent=2))
            return
        click.echo(json.dumps(link.call("session.get", session_key=key), ensure_ascii=False))
        parent: str | None = None
        for message in _all_messages(link, key):
            # Summaries are left out: what follows one follows on what was said before it.
            click.echo(json.dumps({**message, "parent_id": parent}, ensure_ascii=False))
            parent = message["id"]
            if message.get("truncated"):
                click.echo(f"exogate: {message['id']} is too long and was cut", err=True)


@session.command("import")
@click.argument("key")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.pass_obj
def take_in(context: CliContext, key: str, file: IO[str]) -> None:
    """Import what `export` wrote into a session of yours. Messages already there stay."""
    text = file.read()
    with linked(context) as link:
        total = sum(
            link.call("session.import", session_key=key, **part)["imported"]
            for part in _parts(text, file.name)
        )
    if context.json:
        click.echo(json.dumps({"session_key": key, "imported": total}))
    else:
        click.echo(f"{total} messages imported into {key}")


@session.command()
@click.argument("key")
@click.argument("node")
@click.option("--label", help="A name for that message.")
@click.pass_obj
def branch(context: CliContext, key: str, node: str, label: str | None) -> None:
    """Branch from an earlier message. The next message follows that one."""
    with linked(context) as link:
        moved = link.call("session.branch", session_key=key, node_id=node, label=label)
    _tell_head(context, moved)


@session.command()
@click.argument("key")
@click.argument("node")
@click.pass_obj
def checkout(context: CliContext, key: str, node: str) -> None:
    """Continue from a message, given by its id or label."""
    with linked(context) as link:
        moved = link.call("session.checkout", session_key=key, node_id=node)
    _tell_head(context, moved)


def _tell_head(context: CliContext, moved: Mapping[str, Any]) -> None:
    click.echo(json.dumps(moved) if context.json else f"the next message follows {moved['head']}")


def _parts(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    """What to import, in pieces that fit into a frame. Raises ImportRefused with the line."""
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "recent_exchanges" in whole:
        yield {"context": whole}
        return
    messages: list[Mapping[str, Any]] = []
    size = 0
    for number, line in enumerate(text.splitlines(), 1):
        one = _line(line, f"{name}:{number}") if line.strip() else {"session_key": ""}
        if "session_key" in one:  # what stands first tells of the session
            continue
        if messages and (size + len(line) > PART_CHARACTERS or len(messages) >= PAGE):
            yield {"messages": messages}
            messages, size = [], 0
        messages.append(one)
        size += len(line)
    yield {"messages": messages}


def _line(line: str, where: str) -> Mapping[str, Any]:
    try:
        one = json.loads(line)
    except ValueError as error:
        raise ImportRefused(f"{where}: it is no JSON ({error})") from error
    if not isinstance(one, dict):
        raise ImportRefused(f"{where}: it is no JSON object")
    return one


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
