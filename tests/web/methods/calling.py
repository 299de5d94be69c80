"""Calls a method on behalf of a principal and keeps what its connection was sent."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.web.identity import Principal
from gateway.web.rpc import NOTIFICATION, Call, Method, encode_result, run_all, validate
from tests.fakes.promises import require_promised, require_promised_answer

LOCAL = Principal("p", frozenset({"admin", "chat", "read", "impersonate"}))


@dataclass
class FakePeer:
    """The far end of a connection."""

    events: list[dict[str, Any]] = field(default_factory=list)  # of runs
    told: list[dict[str, Any]] = field(default_factory=list)  # what `events.subscribe` asked for
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    is_open: bool = True

    def notify(self, method: str, params_json: bytes) -> None:
        frame = json.loads(NOTIFICATION % (method.encode(), params_json))
        require_promised(method, frame)
        heard = {"chat.event": self.events, "event": self.told}[method]
        heard.append(frame["params"])

    def offer(self, method: str, params_json: bytes) -> bool:
        self.notify(method, params_json)
        return True

    async def room(self) -> None: ...

    def catch_up(self, name: str, work: Callable[[], Awaitable[None]] | None) -> None: ...

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def leave(self) -> None:
        """The connection ends."""
        self.is_open = False
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


async def call(
    methods: dict[str, Method],
    name: str,
    /,
    *,
    on: FakePeer | None = None,
    by: Principal = LOCAL,
    **params: Any,
) -> Any:
    """The result of a method as its caller reads it, the callbacks run as after the answer. Raises
    what it raises."""
    method = methods[name]
    made = Call(by, on or FakePeer(), name)
    answer = method.handler(made, validate(method.params, params))
    result = await answer if method.waits else answer
    run_all(made.after_answer)
    frame = json.loads(encode_result(1, result))
    require_promised_answer(name, frame)
    return frame["result"]
