"""`exogate chat`, `exogate session` and `exogate memory`: the verbs that need several calls, or their own output."""

import json
import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

import click

from gateway.cli.command import FAILED, CliContext, Terminal, failure, json_object
from gateway.cli.link import Link, ask, memory_owner, open_link
from gateway.config.environment import NO_COLOR, read_environment, value_of
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.sessions import ImportRefused
from gateway.domain.text import one_line, visible

# --- chat ----------------------------------------------------------------------------------------
READ_EVERY_S = 0.2  # lines typed while an answer streams
HELP = (
    "/new starts a new conversation · /stop (or Ctrl+C) stops the answer · /status · /help · /quit"
)


@click.command()
@click.option("--message", "-m", help="Send this one message and print the answer.")
@click.option("--agent", help="Talk to this agent; by default the bindings choose one.")
@click.option("--peer", default="main", show_default=True, help="The name of the conversation.")
@click.pass_obj
def chat(context: CliContext, message: str | None, agent: str | None, peer: str) -> None:
    with open_link(context) as link:
        if message is None:
            Conversation(link, agent, peer).run()
            return
        sent = link.call("chat.send", content=message, agent=agent, peer=peer)
        end: Mapping[str, Any] = {}
        for event in link.watch(sent["run_id"]):
            end = event or end
            if end["type"] == "system":  # such as a warning that a budget is nearly spent
                click.echo(f"exogate: {end['system_message']}", err=True)
    has_failed = end["type"] == "error"
    if context.json:
        context.print_json(
            {**end, **failure(end["error_type"], end["message"])} if has_failed else end
        )
    elif not has_failed:
        click.echo(end["response"])
    if has_failed:
        click.echo(f"exogate: {end['message']}", err=True)
        if end["error_type"] != "budget_exceeded":  # its message is enough
            click.echo(f"see `exogate logs --run {end['run_id']}`", err=True)
        sys.exit(FAILED)


class Conversation:
    """A loop that reads a line and streams its answer, until the input ends."""

    def __init__(self, link: Link, agent: str | None, peer: str) -> None:
        self._link, self._asked_agent, self._peer = link, agent, peer
        self._typed: list[str] = []
        route = link.call("route.explain", channel="websocket", account="local", peer=peer)
        self._agent = agent or route["agent_id"]

    def run(self) -> None:
        click.echo(f"Talking to {self._agent} as websocket:local:{self._peer}. {HELP}")
        while True:
            try:
                line = self._typed.pop(0) if self._typed else input("you> ").strip()
            except (EOFError, KeyboardInterrupt):
                click.echo()
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line.split()[0])
            elif line:
                self._say(line)

    def _command(self, word: str) -> None:
        match word:
            case "/new":
                key = SessionKey(AgentId(self._agent), "websocket", "local", self._peer)
                self._link.call("session.create", session_key=str(key))
                click.echo("new conversation; facts about you are kept")
            case "/stop":
                click.echo("no answer is running")
            case "/status":
                shown = self._link.call("status")
                click.echo(
                    f"exogate {shown['version']}, up {shown['uptime_s']:.0f} s, "
                    f"{shown['sessions']} sessions, {shown['running']} running, "
                    f"{'ready' if shown['ready'] else '; '.join(shown['reasons'])}"
                )
            case _:
                click.echo(HELP)

    def _say(self, line: str) -> None:
        asked = {"content": line, "agent": self._asked_agent, "peer": self._peer}
        run_id = self._link.call("chat.send", **asked)["run_id"]
        while True:
            with suppress(KeyboardInterrupt):
                return self._stream(run_id)
            self._link.call("chat.abort", run_id=run_id)

    def _stream(self, run_id: str) -> None:
        for event in self._link.watch(run_id, READ_EVERY_S):
            if event is not None:
                _show(event)
            if "/stop" in self._read_typed():
                self._link.call("chat.abort", run_id=run_id)

    def _read_typed(self) -> list[str]:
        """Returns the lines typed during an answer; all but /stop are sent after the answer."""
        lines: list[str] = []
        if not sys.stdin.isatty():
            return lines
        while select.select([sys.stdin], [], [], 0)[0] and (line := sys.stdin.readline()):
            lines.append(line.strip())
        self._typed += [line for line in lines if line != "/stop"]
        return lines


def _show(event: Mapping[str, Any]) -> None:
    match event["type"]:
        case "content":
            click.echo(event["content"], nl=False)
        case "tool_call":
            call = event["tool_call"]
            _styled(one_line(f"[{call['name']} {call['arguments']}]"), dim=True)
        case "tool_result":
            call = event["tool_call"]
            text = f"[{call['name']}: {call['status']}, {call['duration_ms']:.1f} ms]"
            _styled(one_line(text), dim=True)
        case "source":
            source = event["source"]
            text = f"[source: {source['title'] or source['id']} {source['url'] or ''}]"
            _styled(one_line(text), dim=True)
        case "system":
            _styled(f"\n{event['system_message']}", fg="yellow")
        case "error":
            _styled(f"\n{event['message']}", fg="red")
        case "done":
            click.echo()


def _styled(text: str, **style: Any) -> None:  # the keywords of click.style
    """Prints untrusted text, in colour on a terminal."""
    stream, safe = sys.stdout, visible(text)
    is_plain = not stream.isatty() or value_of(read_environment(), NO_COLOR) is not None
    if is_plain or not isinstance(stream, Terminal):
        click.echo(safe)
    else:
        stream.write_styled(f"{click.style(safe, **style)}\n")
        stream.flush()


# --- sessions and memory -------------------------------------------------------------------------
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
