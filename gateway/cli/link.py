"""Connects the command line to the WebSocket of a running gateway, which it finds through the data directory."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway.api.declarations import Method
from gateway.api.memory import OfSomebody
from gateway.cli.command import CliContext, CommandRefused, NotAllowed, Unreachable
from gateway.config.environment import read_environment
from gateway.config.load import find_data_dir
from gateway.domain.errors import Busy, GatewayError
from gateway.domain.ids import SessionKey
from gateway.host.files import read_key
from gateway.store.opening import LOCK, read_owner

ANSWER_S = 30.0
LARGEST_FRAME = 64 * 1024 * 1024
MOST_OTHERS = 5  # other conversations to list

_ERRORS: dict[int, type[GatewayError]] = {-32001: NotAllowed, -32002: NotAllowed, -32005: Busy}


class Link:
    """A connection that calls one method at a time. Events that arrive during a call wait for `watch`."""

    def __init__(self, socket: ClientConnection, answer_s: float) -> None:
        self._socket, self._answer_s = socket, answer_s
        self._count = 0
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, **params: object) -> Any:  # JSON of the wire
        """Calls a method and returns its result. Raises the GatewayError of the answer."""
        self._count += 1
        given = {name: value for name, value in params.items() if value is not None}
        request = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": given}
        self._socket.send(json.dumps(request))
        while (answer := self._receive(self._answer_s)) is None or answer.get("id") != self._count:
            if answer is None:
                raise Unreachable(f"the gateway did not answer within {self._answer_s:g} s")
            self._events.append(answer)
        if "error" not in answer:
            return answer["result"]
        error = answer["error"]
        kind, message = _ERRORS.get(error["code"]), str(error["message"])
        raise kind(message) if kind else CommandRefused(message, error.get("data") or {})

    def watch(
        self, run_id: str, every_s: float | None = None
    ) -> Iterator[Mapping[str, Any] | None]:
        """Yields the events of a run up to its last, and None after each `every_s` without an event."""
        while True:
            message = self._events.pop(0) if self._events else self._receive(every_s)
            if message is None:
                yield None
                continue
            event = message.get("params", {})
            if message.get("method") != "chat.event" or event.get("run_id") != run_id:
                continue
            yield event
            if event["type"] in {"done", "error"}:
                return

    def _receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        try:
            message = json.loads(self._socket.recv(timeout=timeout_s))
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise Unreachable(f"the gateway closed the connection ({error})") from error
        assert isinstance(message, dict)
        return message


@contextmanager
def open_link(context: CliContext, answer_s: float = ANSWER_S) -> Iterator[Link]:
    """Connects to the gateway that owns the data directory. Raises Unreachable, NotAllowed."""
    folder = data_dir(context)
    owner = read_owner(folder)
    if owner is None or owner.url is None:
        try:
            os.close(os.open(folder / LOCK, os.O_RDONLY))
        except PermissionError:  # another user's directory: a gateway may run
            raise
        except OSError:
            pass  # there is no lock
        raise Unreachable(f"no gateway is running on {folder}; start one with `exogate run`")
    key = read_key(folder)
    if key is None:
        raise NotAllowed(f"this user cannot read the operator's key in {folder}")
    url = owner.url.replace("http", "ws", 1) + "/ws"
    headers = {"Authorization": f"Bearer {key}"}
    try:
        socket = connect(
            url, additional_headers=headers, max_size=LARGEST_FRAME, compression=None, proxy=None
        )
    except InvalidStatus as error:
        raise NotAllowed(f"{url} answered {error.response.status_code}") from error
    except OSError as error:
        raise Unreachable(f"{url} (process {owner.pid}) does not answer: {error}") from error
    with socket:
        yield Link(socket, answer_s)


def ask(
    context: CliContext,
    method: Method | str,
    given: Mapping[str, object] | None = None,
    answer_s: float = ANSWER_S,
) -> Any:
    """Connects, calls one method and returns its result."""
    given = given or {}
    with open_link(context, answer_s) as link:
        if isinstance(method, str):
            return link.call(method, **given)
        if issubclass(method.params, OfSomebody):
            given = memory_owner(link, **given)
        return link.call(method.name, **given)


def memory_owner(
    link: Link, *, session_key: object = None, person: object = None, **more: object
) -> dict[str, object]:
    """Returns the params that name a memory. The default is the conversation of `exogate chat`."""
    if session_key is not None and person is not None:
        raise click.UsageError("give either --session or --person")
    if person is not None:
        return {"person": SessionKey.parse(str(person))._asdict(), **more}
    if session_key is None:
        route = link.call("route.explain", channel="websocket", account="local")
        session_key = str(route["session_key"])
        found = link.call("session.list", limit=MOST_OTHERS + 1)
        others = [one["session_key"] for one in found["sessions"]]
        others = [one for one in others if one != session_key]
        click.echo(f"This is the memory of {session_key}: you, at the command line.", err=True)
        has_more = found["more"] or len(others) > MOST_OTHERS
        beyond = " and more (exogate session list)" if has_more else ""
        if others:
            shown = ", ".join(others[:MOST_OTHERS])
            click.echo(f"For others give --session or --person: {shown}{beyond}", err=True)
        else:
            click.echo("There are no other conversations yet.", err=True)
    return {"session_key": session_key, **more}


def data_dir(context: CliContext) -> Path:
    """Finds the data directory without validating the configuration, which may be broken by now.

    Raises ConfigInvalid if the file cannot be read.
    """
    return find_data_dir(
        context.config_path,
        environment=read_environment(),
        home=Path.home(),
        cwd=Path.cwd(),
        given=context.data_dir,
    )
