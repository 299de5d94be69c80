"""The command line's way to a running gateway: its WebSocket, found through the data directory."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway.cli.context import CliContext, data_dir
from gateway.cli.ending import NotAllowed, Refused, Unreachable
from gateway.domain.errors import Busy, GatewayError
from gateway.host.files import read_key
from gateway.store.opening import read_owner

ANSWER_S = 30.0
BIGGEST_FRAME = 64 * 1024 * 1024

_KINDS: dict[int, type[GatewayError]] = {-32001: NotAllowed, -32002: NotAllowed, -32005: Busy}


class Link:
    """Calls methods one after another; events that arrive meanwhile wait for `events`."""

    def __init__(self, socket: ClientConnection, answer_s: float) -> None:
        self._socket, self._answer_s = socket, answer_s
        self._count = 0
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, **params: object) -> Any:  # the wire's JSON
        """The result; raises the GatewayError that fits the answer."""
        self._count += 1
        given = {name: value for name, value in params.items() if value is not None}
        request = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": given}
        self._socket.send(json.dumps(request))
        while True:
            answer = self._next(self._answer_s)
            if answer.get("id") == self._count:
                break
            self._events.append(answer)
        if "error" in answer:
            raise _error(answer["error"])
        return answer["result"]

    def events(self, run_id: str) -> Iterator[Mapping[str, Any]]:
        """The events of a run until its last."""
        return (event for event in self.watch(run_id, None) if event is not None)

    def watch(self, run_id: str, every_s: float | None) -> Iterator[Mapping[str, Any] | None]:
        """The events of a run until its last; None whenever nothing came for a while."""
        while True:
            message = self._events.pop(0) if self._events else self._arrived(every_s)
            if message is None:
                yield None
                continue
            event = message.get("params", {})
            if message.get("method") != "chat.event" or event.get("run_id") != run_id:
                continue
            yield event
            if event["type"] in {"done", "error"}:
                return

    def _next(self, timeout_s: float) -> dict[str, Any]:
        message = self._arrived(timeout_s)
        if message is None:
            raise Unreachable(f"the gateway did not answer within {timeout_s:g} s")
        return message

    def _arrived(self, timeout_s: float | None) -> dict[str, Any] | None:
        try:
            message = json.loads(self._socket.recv(timeout=timeout_s))
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise Unreachable(f"the gateway closed the connection ({error})") from error
        assert isinstance(message, dict)
        return message


def _error(error: Mapping[str, Any]) -> GatewayError:
    kind, message = _KINDS.get(error["code"]), str(error["message"])
    return kind(message) if kind else Refused(message, error.get("data") or {})


@contextmanager
def linked(context: CliContext, answer_s: float = ANSWER_S) -> Iterator[Link]:
    """A link to the gateway that owns the data directory.

    Raises Unreachable with what to do about it, NotAllowed.
    """
    folder = data_dir(context)
    owner = read_owner(folder)
    if owner is None or owner.url is None:
        raise Unreachable(f"no gateway is running on {folder}; start one with `exogate run`")
    key = read_key(folder)
    if key is None:
        raise NotAllowed(f"this user cannot read the operator's key in {folder}")
    url = owner.url.replace("http", "ws", 1) + "/ws"
    headers = {"Authorization": f"Bearer {key}"}
    try:
        socket = connect(
            url, additional_headers=headers, max_size=BIGGEST_FRAME, compression=None, proxy=None
        )
    except InvalidStatus as error:
        raise NotAllowed(f"{url} answered {error.response.status_code}") from error
    except OSError as error:
        raise Unreachable(f"{url} (process {owner.pid}) does not answer: {error}") from error
    with socket:
        yield Link(socket, answer_s)
