"""The child that compiles one guest: a file of WebAssembly in a folder, two more files beside it.

Compiling hostile code may take any time and memory, or end the process: it happens here, within
limits, and nothing of the guest is run.
"""

import json
import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path

from wasmtime import Module, WasmtimeError
from wasmtime.component import Component

from gateway.sandbox.confinement import confine, die_with_parent
from gateway.sandbox.engines import component_engine, core_engine
from gateway.sandbox.programs import Inspection
from gateway.sandbox.recognising import Unrecognised, recognise_component, recognise_module

MEMORY_BYTES, FILE_BYTES = 3 << 30, 512 << 20
GUEST, COMPILED, REPORT = "guest", "compiled", "report"
_COMPONENT = b"\0asm\x0d\0\x01\0"
_SAID = 500
_NICER_BY = 10  # the gateway and its workers go on while it works on every core


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
    except Unrecognised as error:
        report: dict[str, object] = {"problem": str(error)[:_SAID]}
    except WasmtimeError as error:
        said = " ".join(str(error).split())
        told = f"it is damaged or no valid WebAssembly; build it again ({said}"
        report = {"problem": f"{told[: _SAID - 1]})"}
    else:
        (folder / COMPILED).write_bytes(compiled)
        report = {"inspection": asdict(inspection)}
    (folder / REPORT).write_text(json.dumps(report), encoding="utf-8")


def compile_guest(wasm: bytes) -> tuple[Inspection, bytes]:
    """Raises Unrecognised or WasmtimeError."""
    if wasm.startswith(_COMPONENT):
        engine = component_engine()
        component = Component(engine, wasm)
        return recognise_component(component, engine), bytes(component.serialize())
    if not wasm.startswith(b"\0asm"):
        raise Unrecognised("it is not WebAssembly (a .wasm file begins with a zero byte and 'asm')")
    module = Module(core_engine(), wasm)
    return recognise_module(module), bytes(module.serialize())


if __name__ == "__main__":
    main()
