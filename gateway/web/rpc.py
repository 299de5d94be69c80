"""JSON-RPC 2.0: parsing requests, validating parameters, running methods and encoding answers."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from math import isfinite
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from gateway.api.declarations import Method, Params, plain
from gateway.api.errors import (
    INTERNAL,
    Forbidden,
    InvalidJson,
    InvalidParams,
    InvalidRequest,
    UnknownMethod,
    error_object,
    failure_of,
)
from gateway.api.methods import METHODS
from gateway.codec import has_more_values
from gateway.domain.errors import GatewayError
from gateway.domain.inbox import RunRecord
from gateway.domain.supervision import survives
from gateway.domain.text import meant
from gateway.sessions.runs import LiveRun
from gateway.web.identity import Principal
from gateway.web.responses import encode

log = logging.getLogger(__name__)

JsonId = str | int | float | None
MAX_ID = 256  # characters; an answer repeats the id
MAX_PARAMS = 256
MAX_PROBLEMS = 20
P = TypeVar("P", bound=Params)
MOST_VALUES = 32_768  # in a JSON text: each costs time and memory, however short the text is
_REQUEST_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
NOTIFICATION = b'{"jsonrpc":"2.0","method":"%b","params":%b}'  # %: a method's name, and JSON


@dataclass(frozen=True, slots=True)
class Request:
    """A call. A notification gets no answer, not even an error."""

    id: JsonId
    method: str
    params: dict[str, object]
    is_notification: bool = False


@dataclass(frozen=True, slots=True)
class Malformed:
    """An invalid request with the error to answer, under its id if the id could be read."""

    error: GatewayError
    id: JsonId = None


Item = Request | Malformed
Frame = Item | tuple[Item, ...]
Run = LiveRun | RunRecord
FindRun = Callable[[str], Awaitable[Run]]  # raises NotFound


class Peer(Protocol):
    """The connection of a call. Only `replay` waits."""

    @property
    def is_open(self) -> bool: ...

    @property
    def traceparent(self) -> str | None:
        """The header of the handshake."""
        ...

    def notify(self, method: str, params_json: bytes) -> None: ...

    def stream_run(self, run: LiveRun, find: FindRun) -> None:
        """Sends the events of a run until the run or the connection ends."""
        ...

    async def replay(self, run: Run, find: FindRun, after_seq: int) -> bool:
        """Sends the missed events as fast as they are read, then the new ones. Returns True if the run is live."""
        ...

    def on_close(self, callback: Callable[[], None]) -> Callable[[], object]:
        """Calls `callback` once when the connection ends. Returns a function that removes it."""
        ...


@dataclass(slots=True)
class Call:
    """The context of a method: its principal, and its connection if it came by WebSocket."""

    principal: Principal
    connection: Peer | None = None
    after_answer: list[Callable[[], None]] = field(default_factory=list)  # run once it is sent

    @property
    def peer(self) -> Peer:
        assert self.connection is not None, "this method is not served over HTTP"
        return self.connection


def run_all(callbacks: Iterable[Callable[[], None]]) -> None:
    """Calls all callbacks, also if one fails."""
    for callback in callbacks:
        try:
            callback()
        except Exception:  # the JSON-RPC edge: a failing callback must not stop the others
            log.exception("connection_callback_failed")


# A handler that is a plain function runs without a task, so it must be quick.
Handler = Callable[[Call, Any], Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An allowed request with valid parameters. `waits` is True if its handler is a coroutine function."""

    request: Request
    call: Call
    handler: Handler
    params: Params
    waits: bool


def handlers_of(*families: object) -> Mapping[str, Handler]:
    """Returns the handlers by method: `session.list` is handled by `session_list` of one of the families."""
    return {
        method.name: getattr(family, attribute)
        for method in METHODS
        for family in families
        if hasattr(family, attribute := method.name.replace(".", "_"))
    }


class Registry:
    """The methods by name, each with its handler."""

    def __init__(self, methods: Iterable[Method], handlers: Mapping[str, Handler]) -> None:
        self._methods = {one.name: (one, handlers[one.name]) for one in methods}
        if unknown := handlers.keys() - self._methods.keys():
            raise ValueError(f"methods without a declaration: {', '.join(sorted(unknown))}")
        self._waits = {name: inspect.iscoroutinefunction(one) for name, one in handlers.items()}

    @property
    def methods(self) -> Sequence[Method]:
        return [method for method, _ in self._methods.values()]

    def prepare(
        self, request: Request, principal: Principal, connection: Peer | None = None
    ) -> Prepared:
        """Checks a request. Raises UnknownMethod, Forbidden, InvalidParams."""
        name = request.method
        if name not in self._methods:
            raise UnknownMethod(f"no method {name[:100]!r}" + meant(name, self._methods))
        method, handler = self._methods[name]
        scopes = principal.scopes
        if method.scope is not None and scopes.isdisjoint(method.scope) and "admin" not in scopes:
            raise Forbidden(f"{name} needs the scope {' or '.join(method.scope)}")
        if method.all_agents and principal.agents is not None:
            raise Forbidden(f"{name} concerns all agents; your token reaches only some")
        params = validate(method.params, request.params)
        call = Call(principal, connection)
        return Prepared(request, call, handler, params, self._waits[name])


def parse_json(data: bytes | str, max_depth: int = 64) -> object:
    """Parses JSON of RFC 8259, no deeper than `max_depth`; the last of equal keys counts.

    Raises InvalidJson, also for NaN, numbers beyond a double, lone surrogates and too many values.
    """
    if len(data) > MOST_VALUES:
        text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if has_more_values(text, MOST_VALUES):
            raise InvalidJson(f"not valid JSON: more than {MOST_VALUES} values")
    try:
        value: object = from_json(data, allow_inf_nan=False)
    except (ValueError, TypeError) as error:  # TypeError: a str that cannot be UTF-8
        raise InvalidJson(f"not valid JSON: {str(error)[:200]}") from None
    _check_inside(value, max_depth)
    return value


def _check_inside(value: object, max_depth: int) -> None:
    """Raises InvalidJson for a value that is nested too deep and for a number beyond a double."""
    level: list[Iterable[object]] = [(value,)]
    for _ in range(max_depth + 1):
        below: list[Iterable[object]] = []
        for child in chain.from_iterable(level):
            if type(child) is dict:
                below.append(child.values())
            elif type(child) is list:
                below.append(child)
            elif type(child) is float and not isfinite(child):
                raise InvalidJson("not valid JSON: a number is out of range")
        if not below:
            return
        level = below
    raise InvalidJson(f"not valid JSON: nested deeper than {max_depth} levels")


def read_frame(text: str, *, max_depth: int, max_batch: int) -> Frame:
    """Parses the request of a frame, or the requests of its batch in order."""
    try:
        value = parse_json(text, max_depth)
    except GatewayError as error:
        return Malformed(error)
    if type(value) is dict:
        return _item(value)
    if type(value) is not list:
        return Malformed(InvalidRequest("a request must be an object"))
    if not value:
        return Malformed(InvalidRequest("the batch is empty"))
    if len(value) > max_batch:
        return Malformed(InvalidRequest(f"a batch holds at most {max_batch} requests"))
    return tuple(_item(item) for item in value)


def _item(value: object) -> Item:
    if not isinstance(value, dict):
        return Malformed(InvalidRequest("a request must be an object"))
    id_, method, params = value.get("id"), value.get("method"), value.get("params")
    if id_ is not None and not _is_id(id_):
        text = f"id must be a string of at most {MAX_ID} characters, a number or null"
        return Malformed(InvalidRequest(text))
    if value.get("jsonrpc") != "2.0":
        return Malformed(InvalidRequest('jsonrpc must be "2.0"'), id_)
    if not isinstance(method, str):
        return Malformed(InvalidRequest("method must be a string"), id_)
    if not value.keys() <= _REQUEST_MEMBERS:
        extra = str(min(value.keys() - _REQUEST_MEMBERS))[:100]
        return Malformed(InvalidRequest(f"a request has no member {extra!r}"), id_)
    if not isinstance(params, dict | None):
        return Malformed(InvalidParams("params must be an object with the parameters by name"), id_)
    return Request(id_, method, params or {}, "id" not in value)


def _is_id(value: object) -> bool:
    if type(value) is str:
        return len(value) <= MAX_ID
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float and isfinite(value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def validate(kind: type[P], params: Mapping[str, object]) -> P:
    """Validates parameters. Raises InvalidParams with every wrong one and the nearest known name."""
    if len(params) > MAX_PARAMS:
        raise InvalidParams(f"more than {MAX_PARAMS} parameters")
    of: Any = kind
    try:
        found: P = _adapter(of).validate_python(params)
    except ValidationError as error:
        raise invalid_params(error, kind) from None
    return found


def read_body(kind: type[P], raw: bytes, what: str) -> P:
    """Validates the body of an HTTP request. Raises InvalidRequest, InvalidParams."""
    value = parse_json(raw)
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object with {what}")
    return validate(kind, value)


# Messages for errors where pydantic's own text names Python types or classes of the gateway.
_MESSAGES = {
    "dataclass_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "none_required": "must be null",
}


def invalid_params(error: ValidationError, kind: type[Params]) -> InvalidParams:
    """Describes the errors by names and rules only, as the values may be secret or huge."""
    if error.error_count() > MAX_PROBLEMS:
        return InvalidParams(f"{error.error_count()} parameters are wrong")
    problems = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        place = problem["loc"]
        what = _MESSAGES.get(problem["type"], problem["msg"])
        if problem["type"] == "unexpected_keyword_argument":
            known = [name.rstrip("_") for name, _ in kind.defaults] if len(place) == 1 else ()
            what = "unknown parameter" + meant(str(place[-1]), known)
            place = (*_without_branches(place[:-1]), place[-1])
        else:
            place = _without_branches(place)
        problems.append((".".join(str(part)[:100] for part in place), what))
    return InvalidParams("; ".join(f"{where}: {what}" for where, what in problems), problems)


def _without_branches(place: Sequence[int | str]) -> tuple[int | str, ...]:
    """Removes the names of types that pydantic adds to a path where values of several types are allowed."""
    return tuple(
        part
        for at, part in enumerate(place)
        if at == 0 or isinstance(part, int) or not ("[" in part or part[:1].isupper())
    )


def encode_result(id_: JsonId, result: object) -> bytes:
    """Raises ValueError for a value that JSON cannot hold."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (
        to_json(id_),
        to_json(plain(result), inf_nan_mode="null"),
    )


def encode_error(id_: JsonId, error: BaseException) -> bytes:
    data = error_object(error)
    answer = {"code": failure_of(error).rpc, "message": data.message, "data": data}
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to_json(id_), encode(answer))


def answer_sync(prepared: Prepared) -> bytes:
    """Runs a handler that does not wait."""
    request = prepared.request
    try:
        return encode_result(request.id, prepared.handler(prepared.call, prepared.params))
    except Exception as error:  # noqa: BLE001  # the JSON-RPC edge: a failing call must end no other
        return _failed(request, error)


async def answer(prepared: Prepared) -> bytes:
    """Runs a handler, and waits for it if it is a coroutine function."""
    request = prepared.request
    try:
        result = prepared.handler(prepared.call, prepared.params)
        return encode_result(request.id, await result if prepared.waits else result)
    except asyncio.CancelledError as error:
        if not survives(error):
            raise
        return _failed(request, error)  # no cancel scope of the gateway cancelled it
    except Exception as error:  # noqa: BLE001  # the JSON-RPC edge: a failing call must end no other
        return _failed(request, error)


def _failed(request: Request, error: BaseException) -> bytes:
    if failure_of(error) is INTERNAL:
        log.error("rpc_method_failed", extra={"method": request.method}, exc_info=error)
    return encode_error(request.id, error)
