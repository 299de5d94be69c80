"""`exogate session` and `exogate memory`: the verbs that need several calls, or their own output."""

import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

import click

from gateway.cli.command import CliContext, json_object
from gateway.cli.link import Link, ask, memory_owner, open_link
from gateway.domain.sessions import ImportRefused

PAGE = 200
FACTS_PAGE = 50  # with their sources
PART_CHARACTERS = 200_000

key_argument = click.argument("key")
session_option = click.option(
    "--session", "session_key", metavar="KEY", help="The facts that this conversation sees."
)
person_option = click.option(
    "--person", metavar="KEY", help="All facts of a person: AGENT:CHANNEL:ACCOUNT:PEER."
)


@click.group()
def session() -> None: ...


@session.command()
@key_argument
@click.option("--limit", "-n", type=click.IntRange(1, 500), default=20, show_default=True)
@click.pass_obj
def show(context: CliContext, key: str, limit: int) -> None:
    with open_link(context) as link:
        page = link.call("chat.history", session_key=key, limit=limit)
        if not page["messages"]:
            link.call("session.get", session_key=key)  # raises if there is no such session
    context.print_result(page, *map(_line, page["messages"]))


def _line(one: Mapping[str, Any]) -> str:
    calls = "".join(
        f" [{call['function']['name']} {call['function']['arguments']}]"
        for call in one["tool_calls"] or ()
    )
    text = f"{one['content']}{calls}".replace(
        "\n", "\n    "
    )  # no line of the text looks like a row
    return f"{one['created_at'][:19]}Z {one['run_id']}  {one['role']:9} {text}"


@session.command()
@key_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "oracle"]),
    default="jsonl",
    show_default=True,
    help="jsonl: the session, then its messages; oracle: its last exchanges as one OracleContext.",
)
@click.pass_obj
def export(context: CliContext, key: str, form: str) -> None:
    if form == "oracle":
        shown = ask(context, "session.export", {"session_key": key})["context"]
        click.echo(json.dumps(shown, ensure_ascii=False, indent=2))
        return
    with open_link(context) as link:
        context.print_json(link.call("session.get", session_key=key))
        parent: str | None = None
        for message in _all_messages(link, key):
            # Summaries are left out: each message gets the message before it as its parent.
            context.print_json({**message, "parent_id": parent})
            parent = message["id"]
            if message.get("truncated"):
                click.echo(f"exogate: message {message['id']} is too long and was cut", err=True)


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


@session.command("import")
@key_argument
@click.argument("file", type=click.File(encoding="utf-8"))
@click.pass_obj
def import_(context: CliContext, key: str, file: IO[str]) -> None:
    text = file.read()
    with open_link(context) as link:
        total = sum(
            link.call("session.import", session_key=key, **part)["imported"]
            for part in _parts(text, file.name)
        )
    context.print_result(
        {"session_key": key, "imported": total}, f"{total} messages imported into {key}"
    )


def _parts(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    """Yields the params of each import call, small enough for a frame. Raises ImportRefused with the line."""
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
        one = _message(line, f"{name}:{number}") if line.strip() else {"session_key": ""}
        if "session_key" in one:  # the first line describes the session
            continue
        if messages and (size + len(line) > PART_CHARACTERS or len(messages) >= PAGE):
            yield {"messages": messages}
            messages, size = [], 0
        messages.append(one)
        size += len(line)
    yield {"messages": messages}


def _message(line: str, where: str) -> Mapping[str, Any]:
    try:
        return json_object(line)
    except ValueError as error:
        raise ImportRefused(f"{where}: {error}") from error


@click.group()
def memory() -> None: ...


@memory.command()
@click.argument("fact_id", required=False)
@session_option
@person_option
@click.option("--yes", "-y", is_flag=True, help="Erase them; without it they are only counted.")
@click.pass_obj
def forget(
    context: CliContext,
    fact_id: str | None,
    session_key: str | None,
    person: str | None,
    *,
    yes: bool,
) -> None:
    if [fact_id, session_key, person].count(None) != 2:
        raise click.UsageError("give one of FACT_ID, --session and --person")
    with open_link(context) as link:
        if fact_id:
            which: Mapping[str, object] = {"fact_id": fact_id}
            scope = link.call("memory.why", fact_id=fact_id)["fact"]["scope"]
            click.echo(f"The fact is in the memory of {scope}.", err=True)
        else:
            which = memory_owner(link, session_key=session_key, person=person)
        result = link.call("memory.forget", dry_run=not yes, **which)
    messages = f" and {result['messages']} messages" if "messages" in result else ""
    done = "are erased" if yes else "would be erased; add --yes to do it"
    context.print_result(result, f"{result['count']} facts{messages} {done}")


@memory.command("export")
@session_option
@person_option
@click.pass_obj
def export_facts(context: CliContext, session_key: str | None, person: str | None) -> None:
    with open_link(context) as link:
        owner = memory_owner(link, session_key=session_key, person=person)
        skip = 0  # page by page, so that every answer fits into a frame
        while facts := link.call("memory.history", limit=FACTS_PAGE, skip=skip, **owner)["facts"]:
            skip += len(facts)
            for one in facts:
                why = link.call("memory.why", fact_id=one["id"])
                context.print_json({**one, "sources": why["sources"], "hidden": why["hidden"]})
