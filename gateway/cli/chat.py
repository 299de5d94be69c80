"""`exogate chat`: a conversation with an agent in the terminal."""

import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from gateway.cli.command import FAILED, CliContext, Terminal, failure
from gateway.cli.link import Link, open_link
from gateway.config.environment import NO_COLOR, read_environment, value_of
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.text import one_line, visible

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
