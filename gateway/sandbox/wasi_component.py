"""What components import of WASI preview 2: served within a call's bounds, never by the system.

There are no files, no arguments and no environment, and the input is at its end. Where a function has
no way to say that it is not granted, the wall clock stands at 1970, and random bytes end the call.
Nothing is kept between two calls of a guest's: what its handles name is in their numbers.
"""

from collections.abc import Callable

from wasmtime import Engine, StoreContext
from wasmtime.component import (
    Component,
    ComponentInstanceType,
    FuncType,
    Linker,
    Record,
    ResourceAny,
    ResourceHost,
    ResourceType,
    Variant,
)

from gateway.sandbox.binding import ending, mend_binding
from gateway.sandbox.calls import current
from gateway.sandbox.spelling import spelled_function
from gateway.sandbox.wasi import (
    RESOLUTION_NS,
    STDERR,
    STDIN,
    STDOUT,
    elapsed_ns,
    random_bytes,
    say,
    sleep,
    wall_ns,
)

# Resources, and what the number of one is: which stream; or at which millisecond of the call it is
# ready, which is 0 for whatever is ready always.
_INPUT, _OUTPUT, _POLLABLE = 1, 2, 3
_RESOURCES = {
    "io/streams": {"input-stream": _INPUT, "output-stream": _OUTPUT},
    "io/poll": {"pollable": _POLLABLE},
}
_LATEST_MS = 0xFFFFFFFF
_AT_ONCE = 4096  # bytes that a stream takes

Serve = Callable[..., object]


def offer_wasi(linker: Linker, component: Component, engine: Engine) -> None:
    """Under the very versions that it imports, and only what it imports in the type that we know."""
    mend_binding()
    for name, one in component.type.imports(engine).items():
        package, _, version = name.partition("@")
        short = package.removeprefix("wasi:")
        known = package.startswith("wasi:") and version.startswith("0.2.")
        if known and short in _INTERFACES and isinstance(one.ty, ComponentInstanceType):
            _offer(linker, name, one.ty, engine)


def _offer(linker: Linker, name: str, imported: ComponentInstanceType, engine: Engine) -> None:
    short = name.partition("@")[0].removeprefix("wasi:")
    wanted = {inner: one.ty for inner, one in imported.exports(engine).items()}
    with linker.root() as root, root.add_instance(name) as instance:
        for resource, number in _RESOURCES.get(short, {}).items():
            if isinstance(wanted.get(resource), ResourceType):
                instance.add_resource(resource, ResourceType.host(number), lambda _, __: None)
        for function, (signature, serve) in _INTERFACES[short].items():
            kind = wanted.get(function)
            if isinstance(kind, FuncType) and spelled_function(kind) == signature:
                instance.add_func(function, ending(serve))


def _gives(make: Callable[[], object]) -> Serve:
    return lambda _store: make()


def _of(serve: Callable[..., object]) -> Serve:
    """A method: it gets the number of the resource. A borrowed handle must be taken in any case."""

    def call(store: StoreContext, handle: ResourceAny, *arguments: object) -> object:
        return serve(handle.to_host(store).rep, *arguments)

    return call


def _pollable(due_ns: int) -> ResourceHost:
    current().count("poll")  # each is a handle in the store
    return ResourceHost.own(min(-(-due_ns // 1_000_000), _LATEST_MS), _POLLABLE)


def _stream(number: int) -> Serve:
    def get(_store: StoreContext) -> ResourceHost:
        current().count("poll")
        return ResourceHost.own(number, _INPUT if number == STDIN else _OUTPUT)

    return get


def _wait_s(due_ms: int) -> float:
    return due_ms / 1000 - elapsed_ns() / 1e9 if due_ms else 0.0


def _block(due_ms: int) -> None:
    left_s = _wait_s(due_ms)
    if left_s > 0:
        sleep(left_s)


def _poll(store: StoreContext, handles: list[ResourceAny]) -> list[int]:
    """wasmtime 50 itself ends a guest that hands the host more than one borrowed handle at once."""
    if not handles:
        raise current().stop("trap")
    due = [handle.to_host(store).rep for handle in handles]
    soonest = min(due)
    _block(soonest)
    return [at for at, ms in enumerate(due) if ms <= soonest or _wait_s(ms) <= 0]


def _write(stream: int, data: bytes) -> Variant:
    say(stream, data)
    return Variant("ok")


def _exit(_store: StoreContext, _code: object) -> None:
    raise current().stop("trap")


def _wall_clock() -> Record:
    return _moment(wall_ns() or 0)


def _moment(ns: int) -> Record:
    moment = Record()
    moment.seconds, moment.nanoseconds = divmod(ns, 1_000_000_000)  # type: ignore[attr-defined]  # the binding's records have any field
    return moment


def _random(count: int) -> bytes:
    found = random_bytes(count)
    if found is None:
        raise current().stop("denied")
    return found


_RESULT = "result<{},variant{{last-operation-failed(own),closed}}>"
_READ, _DONE, _ROOM = map(_RESULT.format, ("list<u8>", "_", "u64"))
_MOMENT = "record{seconds:u64,nanoseconds:u32}"
_CLOSED = _of(lambda _stream, *_: None)
_FLUSHED = _of(lambda _stream: Variant("ok"))
_READY = _of(lambda _stream: _pollable(0))
_NOBODY = _gives(lambda: None)
# interface -> function -> its type, and what serves it
_INTERFACES: dict[str, dict[str, tuple[str, Serve]]] = {
    "cli/environment": {
        "get-environment": ("()->list<tuple<string,string>>", _gives(list)),
        "get-arguments": ("()->list<string>", _gives(list)),
        "initial-cwd": ("()->option<string>", _NOBODY),
    },
    "cli/exit": {"exit": ("(result<_,_>)", _exit), "exit-with-code": ("(u8)", _exit)},
    "cli/stdin": {"get-stdin": ("()->own", _stream(STDIN))},
    "cli/stdout": {"get-stdout": ("()->own", _stream(STDOUT))},
    "cli/stderr": {"get-stderr": ("()->own", _stream(STDERR))},
    "cli/terminal-stdin": {"get-terminal-stdin": ("()->option<own>", _NOBODY)},
    "cli/terminal-stdout": {"get-terminal-stdout": ("()->option<own>", _NOBODY)},
    "cli/terminal-stderr": {"get-terminal-stderr": ("()->option<own>", _NOBODY)},
    "clocks/monotonic-clock": {
        "now": ("()->u64", _gives(elapsed_ns)),
        "resolution": ("()->u64", _gives(lambda: RESOLUTION_NS)),
        "subscribe-instant": ("(u64)->own", lambda _, due_ns: _pollable(due_ns)),
        "subscribe-duration": ("(u64)->own", lambda _, ns: _pollable(elapsed_ns() + ns)),
    },
    "clocks/wall-clock": {
        "now": (f"()->{_MOMENT}", _gives(_wall_clock)),
        "resolution": (f"()->{_MOMENT}", _gives(lambda: _moment(RESOLUTION_NS))),
    },
    "filesystem/preopens": {"get-directories": ("()->list<tuple<own,string>>", _gives(list))},
    "io/poll": {
        "[method]pollable.ready": ("(borrow)->bool", _of(lambda due_ms: _wait_s(due_ms) <= 0)),
        "[method]pollable.block": ("(borrow)", _of(_block)),
        "poll": ("(list<borrow>)->list<u32>", _poll),
    },
    "io/streams": {
        "[method]input-stream.read": (f"(borrow,u64)->{_READ}", _CLOSED),
        "[method]input-stream.blocking-read": (f"(borrow,u64)->{_READ}", _CLOSED),
        "[method]input-stream.skip": (f"(borrow,u64)->{_ROOM}", _CLOSED),
        "[method]input-stream.blocking-skip": (f"(borrow,u64)->{_ROOM}", _CLOSED),
        "[method]input-stream.subscribe": ("(borrow)->own", _READY),
        "[method]output-stream.check-write": (f"(borrow)->{_ROOM}", _of(lambda _: _AT_ONCE)),
        "[method]output-stream.write": (f"(borrow,list<u8>)->{_DONE}", _of(_write)),
        "[method]output-stream.blocking-write-and-flush": (
            f"(borrow,list<u8>)->{_DONE}",
            _of(_write),
        ),
        "[method]output-stream.flush": (f"(borrow)->{_DONE}", _FLUSHED),
        "[method]output-stream.blocking-flush": (f"(borrow)->{_DONE}", _FLUSHED),
        "[method]output-stream.subscribe": ("(borrow)->own", _READY),
    },
    "random/random": {
        "get-random-bytes": ("(u64)->list<u8>", lambda _, count: _random(count)),
        "get-random-u64": ("()->u64", _gives(lambda: int.from_bytes(_random(8), "little"))),
    },
    # It may be the same each time: what keeps hash tables apart is not needed within one call.
    "random/insecure-seed": {"insecure-seed": ("()->tuple<u64,u64>", _gives(lambda: (0, 0)))},
}
