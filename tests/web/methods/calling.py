"""Calls a method for a principal and keeps the frames that its connection was sent."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gateway.api.methods import METHODS
from gateway.sessions.intake import Front
from gateway.sessions.replay import Replayer
from gateway.web.chat import ChatMethods
from gateway.web.identity import Principal
from gateway.web.rpc import Handler, Registry, Request, encode_result, run_all
from gateway.web.socket import SocketPeer, Workers
from gateway.web.wire.frames import Wire
from tests.fakes.promises import require_promised, require_promised_answer

LOCAL = Principal("p", frozenset({"admin", "chat", "read", "impersonate"}))


def chat_methods(front: Front) -> ChatMethods:
    """Without what replays runs."""
    return ChatMethods(front, cast(Replayer, None))


class FakeWire:
    """The far end of a connection, which reads everything at once."""

    def __init__(self) -> None:
        self.out = self
        self.events: list[dict[str, Any]] = []  # of runs
        self.told: list[dict[str, Any]] = []  # what `events.subscribe` asked for

    def send(self, data: bytes, *, if_room: bool = False) -> bool:
        frame = json.loads(data)
        require_promised(frame["method"], frame)
        heard = {"chat.event": self.events, "event": self.told}[frame["method"]]
        heard.append(frame["params"])
        return True

    def push(self, data: bytes) -> None:
        self.send(data)


class FakePeer(SocketPeer):
    """A seat on such a connection."""

    def __init__(self) -> None:
        self.far_end = FakeWire()
        super().__init__(cast(Wire, self.far_end), LOCAL, Workers(1))

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.far_end.events

    @property
    def told(self) -> list[dict[str, Any]]:
        return self.far_end.told

    @property
    def callbacks(self) -> Sequence[Callable[[], None]]:
        return list(self._callbacks.values())


async def call(
    methods: Mapping[str, Handler],
    name: str,
    /,
    *,
    on: FakePeer | None = None,
    by: Principal = LOCAL,
    **params: Any,
) -> Any:
    """The result of a method as its caller reads it, the callbacks run as after the answer. Raises
    what it raises."""
    declared = [one for one in METHODS if one.name == name]
    registry = Registry(declared, {name: methods[name]})
    prepared = registry.prepare(Request(1, name, params), by, on or FakePeer())
    answer = prepared.handler(prepared.call, prepared.params)
    result = await answer if prepared.waits else answer
    run_all(prepared.call.after_answer)
    frame = json.loads(encode_result(1, result))
    require_promised_answer(name, frame)
    return frame["result"]
