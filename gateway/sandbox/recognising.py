"""What a compiled file is: its kind of guest, its exports and imports. Nothing of it is run."""

from collections.abc import Mapping

from wasmtime import Engine, Module
from wasmtime import FuncType as CoreFunction
from wasmtime.component import Component, ComponentInstanceType, FuncType

from gateway.domain.plugins import PluginKind
from gateway.sandbox.abis import (
    EXTISM,
    EXTISM_EXPORTS,
    EXTISM_FUNCTIONS,
    EXTISM_USER,
    EXTISM_USER_FUNCTIONS,
    NEAR_EXPORTS,
    NEAR_FUNCTIONS,
    NEAR_HOST,
    NEAR_TOOL,
    WASI_CORE,
)
from gateway.sandbox.programs import Guest, Inspection
from gateway.sandbox.spelling import spelled_core, spelled_function
from gateway.sandbox.worlds import INTERFACES, PACKAGE, VERSION, WORLDS, interface_of

# A type may name another many times over; spelled out, such a one has no end.
LONGEST_TYPE = 16_384
MOST_NAMES = 1000  # exports, and imports: a worker looks at each when it loads it, and others wait

Worlds = Mapping[PluginKind, Mapping[str, tuple[str, ...]]]  # kind -> export -> its types
_KINDS: tuple[PluginKind, ...] = ("tool", "channel")
_OUR_WORLDS: Worlds = {k: {n: (signature,) for n, signature in WORLDS[k].items()} for k in _KINDS}
_CORE_WORLDS: Worlds = {
    kind: {name.replace("-", "_"): EXTISM_EXPORTS for name in WORLDS[kind]} for kind in _KINDS
}


class Unrecognised(Exception):
    """It is WebAssembly, but nothing that can be run here; the text says what it lacks."""


def recognise_component(component: Component, engine: Engine) -> Inspection:
    """Raises Unrecognised."""
    _require_few(len(component.type.exports(engine)), len(component.type.imports(engine)))
    exports = {name: one.ty for name, one in component.type.exports(engine).items()}
    functions = {n: _spelled(n, t) for n, t in exports.items() if isinstance(t, FuncType)}
    imports = {
        name: _functions(one.ty, engine) for name, one in component.type.imports(engine).items()
    }
    near = next((name for name in exports if name.startswith("near:agent/tool@")), None)
    if near is not None:
        _require_near(near, _functions(exports[near], engine))
    guest, kind = _spoken(functions, is_near=near is not None)
    for interface, wanted in imports.items():
        _require_known(interface, wanted, guest)
    return Inspection(guest, kind, _listed(imports), tuple(exports))


def recognise_module(module: Module) -> Inspection:
    """Raises Unrecognised."""
    _require_few(len(module.exports), len(module.imports))
    imports = [(one.module, one.name or "", one.type) for one in module.imports]
    if not any(name in {EXTISM, EXTISM_USER} for name, _, _ in imports):
        raise Unrecognised(
            "it is a core module, but no Extism plugin (it imports nothing of extism:host/env); "
            "make a component of it"
        )
    for name, function, wanted in imports:
        _require_offered(name, function, wanted)
    exports = {one.name: one.type for one in module.exports}
    functions = {n: spelled_core(t) for n, t in exports.items() if isinstance(t, CoreFunction)}
    kind = _world(functions, _CORE_WORLDS)
    return Inspection("extism", kind, tuple(f"{m}#{n}" for m, n, _ in imports), tuple(exports))


def _require_few(exports: int, imports: int) -> None:
    if max(exports, imports) > MOST_NAMES:
        raise Unrecognised(f"it has more than {MOST_NAMES} exports or imports")


def _require_offered(module: str, function: str, kind: object) -> None:
    """An import of a core module; what of WASI is unknown is refused only when it is called."""
    signature = spelled_core(kind) if isinstance(kind, CoreFunction) else "no function"
    if module == WASI_CORE and signature != "no function":
        return
    wanted: tuple[str, ...] = ()
    if module == EXTISM and function in EXTISM_FUNCTIONS:
        wanted = (EXTISM_FUNCTIONS[function],)
    elif module == EXTISM_USER:
        wanted = EXTISM_USER_FUNCTIONS
    if not wanted:
        raise Unrecognised(f"it imports {module}#{function}, which nobody offers")
    if signature not in wanted:
        offered = " or ".join(wanted)
        raise Unrecognised(f"it imports {module}#{function} as {signature}; it is {offered}")


def _spoken(functions: Mapping[str, str], *, is_near: bool) -> tuple[Guest, PluginKind]:
    """How a component is spoken to."""
    if is_near:
        return "near", "tool"
    if any((set(world) - {"describe"}) & set(functions) for world in _OUR_WORLDS.values()):
        return "exogate", _world(functions, _OUR_WORLDS)
    if set(functions) - {"describe"}:
        return "functions", "tool"
    wanted = " and ".join(WORLDS["tool"])
    raise Unrecognised(f"it exports no function that can be called; a tool exports {wanted}")


def _listed(imports: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(f"{i}#{f}" if f else i for i, fs in imports.items() for f in fs or {"": ""})


def _functions(instance: object, engine: Engine) -> dict[str, str]:
    """function -> signature; none if it is no instance."""
    if not isinstance(instance, ComponentInstanceType):
        return {}
    inside = {name: one.ty for name, one in instance.exports(engine).items()}
    return {n: _spelled(n, t) for n, t in inside.items() if isinstance(t, FuncType)}


def _spelled(name: str, function: FuncType) -> str:
    signature = spelled_function(function)
    if len(signature) > LONGEST_TYPE:
        raise Unrecognised(f"the type of {name} is too large")
    return signature


def _world(functions: Mapping[str, str], worlds: Worlds) -> PluginKind:
    """The one world whose exports are all there, in one of the types that they may have."""
    complete = [kind for kind, exports in worlds.items() if set(exports) <= set(functions)]
    if len(complete) > 1:
        raise Unrecognised("it is a tool and a channel adapter at once; make two plugins of it")
    if not complete:
        raise Unrecognised("; ".join(_lacking(functions, worlds)))
    wrong = [
        f"{name} is {functions[name]}, not {' or '.join(types)}"
        for name, types in worlds[complete[0]].items()
        if functions[name] not in types
    ]
    if wrong:
        raise Unrecognised("; ".join(wrong))
    return complete[0]


def _lacking(functions: Mapping[str, str], worlds: Worlds) -> list[str]:
    """What is missing of the worlds that are there in part, or else of a tool."""
    begun = [w for w in worlds.values() if (set(w) - {"describe"}) & set(functions)]
    return [
        f"the export {name} is missing"
        for world in begun or [worlds["tool"]]
        for name in world
        if name not in functions
    ]


def _require_near(interface: str, functions: Mapping[str, str]) -> None:
    if not interface.startswith(NEAR_TOOL):
        raise Unrecognised(f"it exports {interface}; only near:agent/tool@0.4 is spoken here")
    for name, signature in NEAR_EXPORTS.items():
        if functions.get(name) != signature:
            raise Unrecognised(f"{interface}#{name} is {functions.get(name)}, not {signature}")


def _require_known(interface: str, functions: Mapping[str, str], guest: Guest) -> None:
    ours = interface_of(interface)
    if ours is not None:
        _require_same(interface, functions, INTERFACES[ours])
    elif interface.startswith(f"{PACKAGE}/"):
        raise Unrecognised(f"it imports {interface}; {PACKAGE} is offered in version {VERSION}")
    elif guest == "near" and interface.startswith(NEAR_HOST):
        _require_same(interface, functions, NEAR_FUNCTIONS)
    elif not interface.startswith("wasi:"):
        raise Unrecognised(f"it imports {interface}, which nobody offers")


def _require_same(interface: str, wanted: Mapping[str, str], offered: Mapping[str, str]) -> None:
    for name, signature in wanted.items():
        if offered.get(name) != signature:
            raise Unrecognised(
                f"it imports {interface}#{name} as {signature}; "
                + (f"it is {offered[name]}" if name in offered else "there is no such function")
            )
