"""The child process that compiles one guest. It reads one file of a folder and writes two.

Compiling hostile code can take any time and memory, or crash, so this process has limits. It runs no
guest code, and reads the guest's kind, exports and imports from the compiled form.
"""

import json
import os
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from wasmtime import Engine, Module, WasmtimeError
from wasmtime import FuncType as CoreFunction
from wasmtime.component import (
    BorrowType,
    Component,
    ComponentInstanceType,
    EnumType,
    FlagsType,
    FuncType,
    ListType,
    OptionType,
    OwnType,
    RecordType,
    ResultType,
    TupleType,
    ValType,
    VariantType,
)

from gateway.domain.ids import PluginKind
from gateway.sandbox.calls import component_engine, core_engine
from gateway.sandbox.confinement import confine, die_with_parent
from gateway.sandbox.protocol import (
    EXTISM,
    EXTISM_EXPORTS,
    EXTISM_FUNCTIONS,
    EXTISM_USER,
    EXTISM_USER_FUNCTIONS,
    INTERFACES,
    NEAR_EXPORTS,
    NEAR_FUNCTIONS,
    NEAR_HOST,
    NEAR_TOOL,
    PACKAGE,
    VERSION,
    WASI_CORE,
    WORLDS,
    Guest,
    Inspection,
    interface_of,
)


# ----------------------------------------------------------------------------------- types as text
def core_signature(function: CoreFunction) -> str:
    results = ",".join(map(str, function.results))
    return f"({','.join(map(str, function.params))})" + (f"->{results}" if results else "")


def signature_of(function: FuncType) -> str:
    parameters = ",".join(type_text(kind) for _, kind in function.params)
    result = function.result
    return f"({parameters})" + (f"->{type_text(result)}" if result is not None else "")


def type_text(kind: ValType | None) -> str:
    """Returns a type as WIT writes it, without the names of records, variants and resources."""
    if kind is None:
        return "_"
    spell = _COMPOUND.get(type(kind))
    return spell(kind) if spell is not None else type(kind).__name__.lower()


def _case(name: str, payload: ValType | None) -> str:
    return name if payload is None else f"{name}({type_text(payload)})"


# Each function takes a type of its class.
_COMPOUND: dict[type, Callable[..., str]] = {
    OptionType: lambda kind: f"option<{type_text(kind.payload)}>",
    ListType: lambda kind: f"list<{type_text(kind.element)}>",
    ResultType: lambda kind: f"result<{type_text(kind.ok)},{type_text(kind.err)}>",
    TupleType: lambda kind: f"tuple<{','.join(map(type_text, kind.elements))}>",
    RecordType: lambda kind: f"record{{{','.join(f'{n}:{type_text(t)}' for n, t in kind.fields)}}}",
    VariantType: lambda kind: f"variant{{{','.join(_case(n, t) for n, t in kind.cases)}}}",
    EnumType: lambda kind: f"enum{{{','.join(kind.names)}}}",
    FlagsType: lambda kind: f"flags{{{','.join(kind.names)}}}",
    OwnType: lambda _: "own",
    BorrowType: lambda _: "borrow",
}


# -------------------------------------------------------------------------------------- inspection
# A type may refer to another many times, so its text can grow without end.
LONGEST_TYPE = 16_384
MOST_NAMES = 1000  # exports, and imports: a worker reads each while other calls wait

Worlds = Mapping[PluginKind, Mapping[str, tuple[str, ...]]]  # kind -> export -> allowed types
_KINDS: tuple[PluginKind, ...] = ("tool", "channel")
_OUR_WORLDS: Worlds = {k: {n: (signature,) for n, signature in WORLDS[k].items()} for k in _KINDS}
_CORE_WORLDS: Worlds = {
    kind: {name.replace("-", "_"): EXTISM_EXPORTS for name in WORLDS[kind]} for kind in _KINDS
}


class NotAPlugin(Exception):
    """The WebAssembly is not a plugin; the text says what is wrong."""


def inspect_component(component: Component, engine: Engine) -> Inspection:
    """Reads the kind, imports and exports of a component. Raises NotAPlugin."""
    _require_few(len(component.type.exports(engine)), len(component.type.imports(engine)))
    exports = {name: one.ty for name, one in component.type.exports(engine).items()}
    functions = {n: _spell(n, t) for n, t in exports.items() if isinstance(t, FuncType)}
    imports = {
        name: _functions(one.ty, engine) for name, one in component.type.imports(engine).items()
    }
    near = next((name for name in exports if name.startswith("near:agent/tool@")), None)
    if near is not None:
        _require_near(near, _functions(exports[near], engine))
    guest, kind = _guest_kind(functions, is_near=near is not None)
    for interface, wanted in imports.items():
        _require_known(interface, wanted, guest)
    return Inspection(guest, kind, _import_names(imports), tuple(exports))


def inspect_module(module: Module) -> Inspection:
    """Reads the kind, imports and exports of a core module. Raises NotAPlugin."""
    _require_few(len(module.exports), len(module.imports))
    imports = [(one.module, one.name or "", one.type) for one in module.imports]
    if not any(name in {EXTISM, EXTISM_USER} for name, _, _ in imports):
        raise NotAPlugin(
            "it is a core module, but not an Extism plugin (it has no import of "
            "extism:host/env); convert it to a component"
        )
    for name, function, wanted in imports:
        _require_offered(name, function, wanted)
    exports = {one.name: one.type for one in module.exports}
    functions = {n: core_signature(t) for n, t in exports.items() if isinstance(t, CoreFunction)}
    kind = _world(functions, _CORE_WORLDS)
    return Inspection("extism", kind, tuple(f"{m}#{n}" for m, n, _ in imports), tuple(exports))


def _require_few(exports: int, imports: int) -> None:
    if max(exports, imports) > MOST_NAMES:
        raise NotAPlugin(f"it has more than {MOST_NAMES} exports or imports")


def _require_offered(module: str, function: str, kind: object) -> None:
    """Raises NotAPlugin for an unknown import. An unknown function of WASI fails only when called."""
    signature = core_signature(kind) if isinstance(kind, CoreFunction) else "no function"
    if module == WASI_CORE and signature != "no function":
        return
    wanted: tuple[str, ...] = ()
    if module == EXTISM and function in EXTISM_FUNCTIONS:
        wanted = (EXTISM_FUNCTIONS[function],)
    elif module == EXTISM_USER:
        wanted = EXTISM_USER_FUNCTIONS
    if not wanted:
        raise NotAPlugin(f"it imports {module}#{function}, which the host does not offer")
    if signature not in wanted:
        offered = " or ".join(wanted)
        raise NotAPlugin(f"it imports {module}#{function} as {signature}; it must be {offered}")


def _guest_kind(functions: Mapping[str, str], *, is_near: bool) -> tuple[Guest, PluginKind]:
    """Returns the calling convention and the kind of a component."""
    if is_near:
        return "near", "tool"
    if any((set(world) - {"describe"}) & set(functions) for world in _OUR_WORLDS.values()):
        return "exogate", _world(functions, _OUR_WORLDS)
    if set(functions) - {"describe"}:
        return "functions", "tool"
    wanted = " and ".join(WORLDS["tool"])
    raise NotAPlugin(f"it exports no function; a tool exports {wanted}")


def _import_names(imports: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(f"{i}#{f}" if f else i for i, fs in imports.items() for f in fs or {"": ""})


def _functions(instance: object, engine: Engine) -> dict[str, str]:
    """Returns the signatures of an instance's functions; empty for other types."""
    if not isinstance(instance, ComponentInstanceType):
        return {}
    inside = {name: one.ty for name, one in instance.exports(engine).items()}
    return {n: _spell(n, t) for n, t in inside.items() if isinstance(t, FuncType)}


def _spell(name: str, function: FuncType) -> str:
    signature = signature_of(function)
    if len(signature) > LONGEST_TYPE:
        raise NotAPlugin(f"the type of {name} is too large")
    return signature


def _world(functions: Mapping[str, str], worlds: Worlds) -> PluginKind:
    """Returns the one world whose exports are complete and have allowed types."""
    complete = [kind for kind, exports in worlds.items() if set(exports) <= set(functions)]
    if len(complete) > 1:
        raise NotAPlugin("it is a tool and a channel adapter; split it into two plugins")
    if not complete:
        raise NotAPlugin("; ".join(_missing_exports(functions, worlds)))
    wrong = [
        f"{name} is {functions[name]}; it must be {' or '.join(types)}"
        for name, types in worlds[complete[0]].items()
        if functions[name] not in types
    ]
    if wrong:
        raise NotAPlugin("; ".join(wrong))
    return complete[0]


def _missing_exports(functions: Mapping[str, str], worlds: Worlds) -> list[str]:
    """Lists the missing exports of the worlds that are present in part, or else of a tool."""
    begun = [w for w in worlds.values() if (set(w) - {"describe"}) & set(functions)]
    return [
        f"the export {name} is missing"
        for world in begun or [worlds["tool"]]
        for name in world
        if name not in functions
    ]


def _require_near(interface: str, functions: Mapping[str, str]) -> None:
    if not interface.startswith(NEAR_TOOL):
        raise NotAPlugin(f"it exports {interface}; only near:agent/tool@0.4 is supported")
    for name, signature in NEAR_EXPORTS.items():
        if functions.get(name) != signature:
            found = functions.get(name, "missing")
            raise NotAPlugin(f"{interface}#{name} is {found}; it must be {signature}")


def _require_known(interface: str, functions: Mapping[str, str], guest: Guest) -> None:
    ours = interface_of(interface)
    if ours is not None:
        _require_same(interface, functions, INTERFACES[ours])
    elif interface.startswith(f"{PACKAGE}/"):
        raise NotAPlugin(f"it imports {interface}; the host offers {PACKAGE} in version {VERSION}")
    elif guest == "near" and interface.startswith(NEAR_HOST):
        _require_same(interface, functions, NEAR_FUNCTIONS)
    elif not interface.startswith("wasi:"):
        raise NotAPlugin(f"it imports {interface}, which the host does not offer")


def _require_same(interface: str, wanted: Mapping[str, str], offered: Mapping[str, str]) -> None:
    for name, signature in wanted.items():
        if offered.get(name) != signature:
            raise NotAPlugin(
                f"it imports {interface}#{name} as {signature}; "
                + (
                    f"it must be {offered[name]}"
                    if name in offered
                    else "there is no such function"
                )
            )


# ------------------------------------------------------------------------------------- the process
MEMORY_BYTES, FILE_BYTES = 3 << 30, 512 << 20
GUEST, COMPILED, REPORT = "guest", "compiled", "report"
_COMPONENT = b"\0asm\x0d\0\x01\0"
_LONGEST_PROBLEM = 500
_NICER_BY = 10  # a compilation can use every core; the gateway and its workers run first


def main() -> None:
    folder, cpu_s = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent()
    os.nice(_NICER_BY)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    confine(writable=[folder])
    try:
        inspection, compiled = compile_guest((folder / GUEST).read_bytes())
    except NotAPlugin as error:
        report: dict[str, object] = {"problem": str(error)[:_LONGEST_PROBLEM]}
    except WasmtimeError as error:
        reason = " ".join(str(error).split())
        problem = f"it is damaged or not valid WebAssembly; build it again ({reason}"
        report = {"problem": f"{problem[: _LONGEST_PROBLEM - 1]})"}
    else:
        (folder / COMPILED).write_bytes(compiled)
        report = {"inspection": asdict(inspection)}
    (folder / REPORT).write_text(json.dumps(report), encoding="utf-8")


def compile_guest(wasm: bytes) -> tuple[Inspection, bytes]:
    """Inspects and compiles a guest. Raises NotAPlugin or WasmtimeError."""
    if wasm.startswith(_COMPONENT):
        engine = component_engine()
        component = Component(engine, wasm)
        return inspect_component(component, engine), bytes(component.serialize())
    if not wasm.startswith(b"\0asm"):
        raise NotAPlugin("it is not WebAssembly (a .wasm file begins with a zero byte and 'asm')")
    module = Module(core_engine(), wasm)
    return inspect_module(module), bytes(module.serialize())


if __name__ == "__main__":
    main()
