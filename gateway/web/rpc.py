"""JSON-RPC 2.0: frames to requests, methods with their parameters, answers to bytes."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from gateway.api.errors import Forbidden, InvalidParams, InvalidRequest, UnknownMethod
from gateway.domain.errors import GatewayError
from gateway.domain.supervision import survives
from gateway.web.identity import Principal
from gateway.web.responses import INTERNAL, error_object, failure_of
from gateway.web.wire.guards import parse_json

log = logging.getLogger(__name__)

JsonId = str | int | float | None
MAX_ID = 256  # characters; an answer repeats it
MAX_PARAMS = 256
MAX_PROBLEMS = 20
_REQUEST_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
NOTIFICATION = b'{"jsonrpc":"2.0","method":"%b","params":%b}'  # %: a name of ours, and JSON


@dataclass(frozen=True, slots=True)
class Request:
    """One call. A notification wants no answer, not even an error."""

    id: JsonId
    method: str
    params: dict[str, object]
    is_notification: bool = False


@dataclass(frozen=True, slots=True)
class Malformed:
    """A broken request. The answer is `error`, under its id if that can be read."""

    error: GatewayError
    id: JsonId = None


Item = Request | Malformed
Frame = Item | tuple[Item, ...]


class Peer(Protocol):
    """The connection a call came by. Nothing here waits but `room`."""

    @property
    def is_open(self) -> bool: ...

    def notify(self, method: str, params_json: bytes) -> None: ...

    def offer(self, method: str, params_json: bytes) -> bool:
        """Sends a notification that can be had later. False: the reader is behind, nothing was sent."""
        ...

    async def room(self) -> None:
        """Returns once the reader has caught up, or the connection has ended."""
        ...

    def catch_up(self, name: str, work: Callable[[], Awaitable[None]] | None) -> None:
        """Runs the work once there is room, one after another. It replaces work of the same name; None
        removes that."""
        ...

    def on_close(self, callback: Callable[[], None]) -> Callable[[], object]:
        """Calls it once when the connection ends. Returns how to remove it."""
        ...


@dataclass(slots=True)
class Call:
    """On whose behalf a method runs, and by which connection its answer goes."""

    principal: Principal
    peer: Peer
    method: str
    after_answer: list[Callable[[], None]] = field(default_factory=list)  # runs when it is sent


def run_all(callbacks: Iterable[Callable[[], None]]) -> None:
    """Calls each of them, also when another fails."""
    for callback in callbacks:
        try:
            callback()
        except Exception:  # the JSON-RPC edge: one bad callback ends nothing else
            log.exception("a callback of a connection failed")


Handler = Callable[[Call, Any], Any]


@dataclass(frozen=True, slots=True)
class Method:
    """`params` forbids extras. A handler that is a plain function is run without any task: it must
    be quick. It says what it results in by its annotation, and what it is for by the first line of its
    docstring. Any of the scopes will do; None: any principal may."""

    name: str
    params: type[BaseModel]
    scope: tuple[str, ...] | None
    handler: Handler

    def __post_init__(self) -> None:
        if self.params.model_config.get("extra") != "forbid":
            raise ValueError(f"the parameters of {self.name} must forbid extras")
        if self.result is object:
            raise ValueError(f"the handler of {self.name} must say what it results in")
        if __debug__ and not self.summary:  # else nobody has any docstring
            raise ValueError(f"the handler of {self.name} must say what it is for")

    @property
    def result(self) -> Any:
        """The type that the handler gives, for the documents."""
        return getattr(self.handler, "__annotations__", {}).get("return", object)

    @property
    def summary(self) -> str:
        """A sentence for users."""
        return (self.handler.__doc__ or "").partition("\n")[0]

    @property
    def waits(self) -> bool:
        """Whether the handler is a coroutine function."""
        return inspect.iscoroutinefunction(self.handler)


class NoParams(BaseModel, extra="forbid"):
    """For methods that take none."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that may run."""

    request: Request
    handler: Handler
    params: BaseModel
    waits: bool


class Registry:
    """All methods by name."""

    def __init__(self, methods: Iterable[Method]) -> None:
        self._methods: dict[str, tuple[Method, frozenset[str], bool]] = {}
        for method in methods:
            if method.name in self._methods:
                raise ValueError(f"two methods are called {method.name}")
            allowed = frozenset({*(method.scope or ()), "admin"})
            self._methods[method.name] = (method, allowed, method.waits)

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._methods)

    def prepare(self, request: Request, principal: Principal) -> Prepared:
        """Raises UnknownMethod, Forbidden, InvalidParams."""
        found = self._methods.get(request.method)
        if found is None:
            raise UnknownMethod(
                f"no method {request.method[:100]!r}" + did_you_mean(request.method, self._methods)
            )
        method, allowed, waits = found
        if method.scope is not None and allowed.isdisjoint(principal.scopes):
            raise Forbidden(f"{method.name} needs the scope {' or '.join(method.scope)}")
        return Prepared(request, method.handler, validate(method.params, request.params), waits)


def read_frame(text: str, *, max_depth: int, max_batch: int) -> Frame:
    """A frame's request, or those of its batch in order."""
    try:
        value = parse_json(text, max_depth)
    except GatewayError as error:
        return Malformed(error)
    if type(value) is dict:
        return _item(value)
    if type(value) is not list:
        return Malformed(InvalidRequest("a request is an object"))
    if not value:
        return Malformed(InvalidRequest("an empty batch"))
    if len(value) > max_batch:
        return Malformed(InvalidRequest(f"a batch holds at most {max_batch} requests"))
    return tuple(_item(item) for item in value)


def _item(value: object) -> Item:
    if not isinstance(value, dict):
        return Malformed(InvalidRequest("a request is an object"))
    id_, method, params = value.get("id"), value.get("method"), value.get("params")
    if not _is_id(id_):
        return Malformed(InvalidRequest("an id is a short string, a number or null"))
    if value.get("jsonrpc") != "2.0":
        return Malformed(InvalidRequest('jsonrpc must be "2.0"'), id_)
    if not isinstance(method, str):
        return Malformed(InvalidRequest("method must be a string"), id_)
    if not value.keys() <= _REQUEST_MEMBERS:
        extra = str(min(value.keys() - _REQUEST_MEMBERS))[:100]
        return Malformed(InvalidRequest(f"a request has no member {extra!r}"), id_)
    if not isinstance(params, dict | None):
        return Malformed(InvalidParams("params must be an object: they go by name"), id_)
    return Request(id_, method, params or {}, "id" not in value)


def _is_id(value: object) -> bool:
    if value is None:
        return True
    if type(value) is str:
        return len(value) <= MAX_ID
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float and isfinite(value)


def validate(model: type[BaseModel], params: dict[str, object]) -> BaseModel:
    """Raises InvalidParams naming every parameter that is wrong, with what may have been meant."""
    if len(params) > MAX_PARAMS:
        raise InvalidParams(f"more than {MAX_PARAMS} parameters")
    try:
        return model.model_validate(params)
    except ValidationError as error:
        raise invalid_params(error, model) from None


# Where pydantic's own words speak of Python, or of our classes.
_WORDS = {
    "model_type": "has to be an object",
    "model_attributes_type": "has to be an object",
    "dict_type": "has to be an object",
    "list_type": "has to be a list",
    "tuple_type": "has to be a list",
    "string_type": "has to be a text",
    "bool_type": "has to be true or false",
    "none_required": "has to be null",
}


def invalid_params(error: ValidationError, model: type[BaseModel]) -> InvalidParams:
    """Only names and rules: the values are the caller's own and may be secret or huge."""
    if error.error_count() > MAX_PROBLEMS:
        return InvalidParams(f"{error.error_count()} parameters are wrong")
    problems = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part)[:100] for part in problem["loc"])
        what = _WORDS.get(problem["type"], problem["msg"])
        if problem["type"] == "extra_forbidden":
            last = str(problem["loc"][-1])
            known = model.model_fields if len(problem["loc"]) == 1 else ()
            what = "unknown parameter" + did_you_mean(last, known)
        problems.append((where, what))
    return InvalidParams("; ".join(f"{where}: {what}" for where, what in problems), problems)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word[:100], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def encode_result(id_: JsonId, result: object) -> bytes:
    """Raises ValueError for what JSON cannot hold."""
    body = to_json(result, inf_nan_mode="null")
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (to_json(id_), body)


def encode_error(id_: JsonId, error: BaseException) -> bytes:
    data = error_object(error)
    answer = {"code": failure_of(error).rpc, "message": data["message"], "data": data}
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to_json(id_), to_json(answer))


def answer_at_once(prepared: Prepared, call: Call) -> bytes:
    """Runs a handler that does not wait."""
    request = prepared.request
    try:
        return encode_result(request.id, prepared.handler(call, prepared.params))
    except Exception as error:  # noqa: BLE001  # the JSON-RPC edge: one bad call ends nothing else
        return _failed(request, error)


async def answer(prepared: Prepared, call: Call) -> bytes:
    """Runs any handler."""
    if not prepared.waits:
        return answer_at_once(prepared, call)
    request = prepared.request
    try:
        return encode_result(request.id, await prepared.handler(call, prepared.params))
    except asyncio.CancelledError as error:
        if not survives(error):
            raise
        return _failed(request, error)  # no scope of ours did it
    except Exception as error:  # noqa: BLE001  # the JSON-RPC edge: one bad call ends nothing else
        return _failed(request, error)


def _failed(request: Request, error: BaseException) -> bytes:
    if failure_of(error) is INTERNAL:
        log.error("rpc method failed", extra={"method": request.method}, exc_info=error)
    return encode_error(request.id, error)
