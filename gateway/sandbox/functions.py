"""Components whose plain functions are tools, as Wassette's: their types are the schemas."""

import json
from dataclasses import dataclass

from wasmtime import Engine, WasmtimeError
from wasmtime.component import Component, ExportIndex, FuncType, Linker, ResultType

from gateway.sandbox.binding import case_of
from gateway.sandbox.calls import Call, opened_store, trapped
from gateway.sandbox.components import offer
from gateway.sandbox.programs import Program, Status
from gateway.sandbox.reflecting import Inexpressible, Misfit, Shape, shape_of, shape_of_fields
from gateway.sandbox.spelling import spelled_function

LONGEST_DESCRIPTION = 1024


@dataclass(frozen=True, slots=True)
class _Function:
    """`fails` has the type of a result: its error is the tool's."""

    export: ExportIndex
    arguments: Shape
    result: Shape
    fails: ResultType | None
    about: str


class FunctionsGuest:
    """One loaded component. Every call has an instance of its own; only code is shared."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._component = Component.deserialize_file(engine, program.path)
        self._linker = Linker(engine)
        offer(self._linker, self._component, engine)
        self._linker.define_unknown_imports_as_traps(self._component)
        exports = self._component.type.exports(engine)
        found = ((name, self._function(name, one.ty)) for name, one in exports.items())
        self._functions = {name: function for name, function in found if function is not None}

    def _function(self, name: str, kind: object) -> _Function | None:
        """None for what JSON cannot call."""
        export = self._component.get_export_index(name)
        if not isinstance(kind, FuncType) or export is None:
            return None
        about = f"{name}{spelled_function(kind)}"[:LONGEST_DESCRIPTION]
        result = kind.result
        fails = result if isinstance(result, ResultType) else None
        try:
            arguments = shape_of_fields(kind.params)
            told = shape_of(fails.ok if fails is not None else result)
        except Inexpressible:
            return None
        return _Function(export, arguments, told, fails, about)

    def run(self, call: Call, function: str, text: str) -> tuple[Status, str]:
        if function == "describe":
            return "ok", json.dumps({"name": "functions", "tools": self._tools()})
        if function != "handle-tool-call":
            return "invalid", f"it has no {function}"
        asked = json.loads(text)
        chosen = self._functions.get(asked["tool"])
        if chosen is None:
            return "err", f"there is no tool {asked['tool']}"
        try:
            values = chosen.arguments.read(asked["arguments"])
        except Misfit as error:
            return "err", f"the arguments do not fit: {error}"
        assert isinstance(values, list)
        return self._called(call, chosen, values)

    def _tools(self) -> list[object]:
        return [
            {"name": name, "description": one.about, "parameters": one.arguments.schema}
            for name, one in self._functions.items()
        ]

    def _called(self, call: Call, chosen: _Function, values: list[object]) -> tuple[Status, str]:
        with opened_store(self._engine, call) as store:
            try:
                instance = self._linker.instantiate(store, self._component)
                function = instance.get_func(store, chosen.export)
                value = function(store, *values) if function is not None else None
            except WasmtimeError as error:
                return trapped(call, error)
            if call.why is not None:
                return trapped(call, WasmtimeError(""))
        if chosen.fails is not None:
            case, _, value = case_of(chosen.fails, value)
            if case == "err":
                return "err", value if isinstance(value, str) else "it failed"
        return "ok", json.dumps(chosen.result.tell(value))
