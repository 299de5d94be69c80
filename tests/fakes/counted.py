"""A store whose calls are counted, and the messages that it gives."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from inspect import iscoroutinefunction
from typing import Any

from gateway.domain.ports import Stores

NODES = "nodes read"


class _Counted:
    """Any port: each call of a method counts under its name, and the nodes that it brings."""

    def __init__(self, port: Any, calls: Counter[str]) -> None:
        self._port, self._calls = port, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if iscoroutinefunction(method):
            return self._waited(f"{type(self._port).__name__}.{name}", method)
        return method  # a value, or what is written later, with others

    def _waited(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any, **more: Any) -> Any:
            self._calls[name] += 1
            given = await method(*args, **more)
            self._calls[NODES] += len(getattr(given, "nodes", ()))
            return given

        return counted


def counted(stores: Stores) -> tuple[Stores, Counter[str]]:
    calls: Counter[str] = Counter()
    ports: list[Any] = [_Counted(getattr(stores, one.name), calls) for one in fields(stores)]
    return Stores(*ports), calls
