"""`exogate chat`: talk to an agent in the terminal."""

import json
import select
import sys
from collections.abc import Mapping
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.ending import FAILED, failure
from gateway.cli.link import Link, linked
from gateway.cli.terminal import tell_styled
from gateway.domain.ids import encode_part
from gateway.host.terminal import one_line

LISTEN_EVERY_S = 0.2  # to what is typed while an answer streams
HELP = "/new a fresh conversation · /stop the answer (or Ctrl+C) · /status · /help · /quit"


@click.command()
@click.option("--message", "-m", help="Send this one message and print the answer.")
@click.option("--agent", help="Talk to this agent instead of the one that bindings choose.")
@click.option("--peer", default="main", show_default=True, help="Which conversation.")
@click.pass_obj
def chat(context: CliContext, message: str | None, agent: str | None, peer: str) -> None:
    """Talk to an agent in the terminal."""
    with linked(context) as link:
        if message is None:
            Conversation(link, agent, peer).hold()
            return
        end = _ask(link, message, agent, peer)
        if context.json:
            failed = failure(end["error_type"], end["message"]) if end["type"] == "error" else {}
            click.echo(json.dumps({**end, **failed}, ensure_ascii=False))
        elif end["type"] == "done":
            click.echo(end["response"])
        if end["type"] == "error":
            click.echo(f"exogate: {end['message']}", err=True)
            sys.exit(FAILED)


def _ask(link: Link, message: str, agent: str | None, peer: str) -> Mapping[str, Any]:
    sent = link.call("chat.send", content=message, agent=agent, peer=peer)
    for event in link.events(sent["run_id"]):
        if event["type"] == "system":  # why an answer is cut short, what is nearly spent
            click.echo(f"exogate: {event['system_message']}", err=True)
    return event


class Conversation:
    """Reads a line, streams the answer, until the input ends."""

    def __init__(self, link: Link, agent: str | None, peer: str) -> None:
        self._link, self._agent, self._peer = link, agent, peer
        self._typed: list[str] = []

    def hold(self) -> None:
        self._greet()
        while True:
            try:
                line = self._typed.pop(0) if self._typed else input("you> ").strip()
            except (EOFError, KeyboardInterrupt):
                click.echo()
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._say(line)

    def _greet(self) -> None:
        route = self._link.call(
            "route.explain", channel="websocket", account="local", peer=self._peer
        )
        agent = self._agent or route["agent_id"]
        click.echo(f"Talking to {agent} as websocket:local:{self._peer}. {HELP}")

    def _command(self, line: str) -> None:
        match line.split()[0]:
            case "/new":
                self._start_anew()
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

    def _start_anew(self) -> None:
        """Another peer is another session; the old one stays as it is."""
        base = self._peer.partition("#")[0]
        page = self._link.call(
            "session.list", channel="websocket", query=encode_part(base), limit=500
        )
        taken = {record["peer"] for record in page["sessions"]}
        number = 2
        while f"{base}#{number}" in taken or f"{base}#{number}" == self._peer:
            number += 1
        self._peer = f"{base}#{number}"
        click.echo(f"a fresh conversation: {self._peer}")

    def _say(self, line: str) -> None:
        sent = self._link.call("chat.send", content=line, agent=self._agent, peer=self._peer)
        while True:
            try:
                self._stream(sent["run_id"])
                return
            except KeyboardInterrupt:
                self._link.call("chat.abort", run_id=sent["run_id"])

    def _stream(self, run_id: str) -> None:
        for event in self._link.watch(run_id, LISTEN_EVERY_S):
            if event is not None:
                _show(event)
            if "/stop" in self._overheard():
                self._link.call("chat.abort", run_id=run_id)

    def _overheard(self) -> list[str]:
        """Lines that were typed during an answer; all but /stop are taken up after it."""
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
            tell_styled(one_line(f"[{call['name']} {call['arguments']}]"), dim=True)
        case "tool_result":
            call = event["tool_call"]
            text = f"[{call['name']}: {call['status']}, {call['duration_ms']:.1f} ms]"
            tell_styled(one_line(text), dim=True)
        case "source":
            source = event["source"]
            text = f"[source: {source['title'] or source['id']} {source['url'] or ''}]"
            tell_styled(one_line(text), dim=True)
        case "system":
            tell_styled(f"\n{event['system_message']}", fg="yellow")
        case "error":
            tell_styled(f"\n{event['message']}", fg="red")
        case "done":
            click.echo()
