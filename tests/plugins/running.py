"""Runs a plugin's recorded cases in a bare wasmtime, with a host made of what the case says."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from wasmtime import Engine, Store
from wasmtime.component import Component, Linker, LinkerInstance, Variant

from tests.fakes.compiled import SHELF

Json = Any  # reason: cases are JSON of any shape
Spaces = dict[str, dict[str, str]]

PLUGINS = Path(__file__).parent.parent.parent / "plugins"
KINDS = {
    path.parent.name: tomllib.loads(path.read_text())["kind"]
    for path in sorted(PLUGINS.glob("*/plugin.toml"))
}

PREFIX, VERSION = "exogate:plugin/", "@1.0.0"


@dataclass
class Guest:
    """One plugin; each call has a fresh instance, the store stays."""

    engine: Engine
    component: Component
    spaces: Spaces = field(default_factory=dict)
    logged: list[tuple[str, str]] = field(default_factory=list)
    case: Mapping[str, Json] = field(default_factory=dict)
    denial: str | None = None  # what the store says to a write
    memory_bytes: int = 64 << 20

    @classmethod
    def load(cls, path: Path) -> Self:
        engine, done = Engine(), SHELF.folder / f"{path.parent.name}.bare"
        if not done.exists():
            new = done.with_suffix(f".{os.getpid()}")
            new.write_bytes(Component.from_file(engine, str(path)).serialize())
            new.rename(done)
        return cls(engine, Component.deserialize_file(engine, str(done)))

    @property
    def imports(self) -> set[str]:
        """The interfaces of ours that it imports."""
        names = self.component.type.imports(self.engine)
        return {name.removeprefix(PREFIX).removesuffix(VERSION) for name in names}

    def describe(self) -> Json:
        return json.loads(self.call("describe"))

    def run(self, case: Mapping[str, Json]) -> tuple[bool, str]:
        """Whether the tool did it, and its text."""
        self.case = case
        for namespace, values in case.get("store", {}).items():
            self.spaces.setdefault(namespace, {}).update(values)
        call = case["call"]
        if "export" in call:  # of a channel
            answer = self.call(call["export"], json.dumps(call["input"]))
            return answer.tag == "ok", answer.payload
        given = {
            "tool": call["tool"],
            "arguments": call["arguments"],
            "call_id": "call-1",
            "session": {"id": call.get("session", "s1")},
            "config": call.get("config", {}),
        }
        answer = self.call("handle-tool-call", json.dumps(given))
        return answer.tag == "ok", answer.payload

    def call(self, export: str, *given: str) -> Json:
        store = Store(self.engine)
        store.set_limits(memory_size=self.memory_bytes)
        try:
            function = self._linker().instantiate(store, self.component).get_func(store, export)
            assert function is not None
            return function(store, *given)
        finally:
            store.close()

    def _linker(self) -> Linker:
        linker = Linker(self.engine)
        functions: dict[str, dict[str, Json]] = {
            "log": {"write": lambda _, level, text: self.logged.append((level, text))},
            "http": {"request": self._request},
            "store": {
                "get": lambda _, space, key: _ok(self.spaces.get(space, {}).get(key)),
                "set": self._set,
                "delete": self._delete,
                "list": self._list,
            },
            "clock": {"now-ms": lambda _: self.case["clock_ms"]},
            "random": {"bytes-hex": lambda _, count: "5a" * count},
            "host": {"call": lambda _, name, given: self.answer(name, given)},
        }
        with linker.root() as root:
            for interface in self.imports & set(functions):
                _add(root, interface, functions[interface])
        linker.define_unknown_imports_as_traps(self.component)
        return linker

    def _request(self, _: object, request: str) -> Variant:
        asked = json.loads(request)
        for known in self.case.get("http", []):
            if (known["method"], known["url"]) == (asked["method"], asked["url"]):
                return _ok(json.dumps({k: known[k] for k in known if k not in {"method", "url"}}))
        return Variant("err", f"denied: {asked['url']} was not granted")

    def answer(self, name: str, given: str) -> Variant:
        """What a function of the operator's says."""
        for known in self.case.get("functions", {}).get(name, []):
            if known["input"] == json.loads(given):
                return _ok(known["output"])
        return Variant("err", f"denied: {name} has no answer to {given}")

    def _set(self, _: object, space: str, key: str, value: str) -> str | None:
        """A problem, or None: the binding wants no tag where the two cannot be mistaken."""
        if self.denial is not None:
            return self.denial
        assert len(key.encode()) <= 256
        assert len(value.encode()) <= 65536
        self.spaces.setdefault(space, {})[key] = value
        return None

    def _delete(self, _: object, space: str, key: str) -> None:
        self.spaces.get(space, {}).pop(key, None)

    def _list(self, _: object, space: str, prefix: str) -> Variant:
        return _ok(
            json.dumps([k for k in sorted(self.spaces.get(space, {})) if k.startswith(prefix)])
        )


def _add(root: LinkerInstance, interface: str, functions: Mapping[str, Json]) -> None:
    with root.add_instance(f"{PREFIX}{interface}{VERSION}") as instance:
        for name, function in functions.items():
            instance.add_func(name, function)


def _ok(payload: Json) -> Variant:
    return Variant("ok", payload)


def problem(case: Mapping[str, Json], did: bool, text: str) -> str | None:
    """What is not as the case expects; None if all is."""
    if "expect_error" in case:
        fine = not did and case["expect_error"] in text
        return None if fine else f"expected an error with {case['expect_error']!r}, got {text!r}"
    if not did:
        return f"it refused: {text}"
    if "expect_contains" in case:
        fine = case["expect_contains"] in text
        return None if fine else f"expected {case['expect_contains']!r} in {text!r}"
    return None if json.loads(text) == case["expect"] else f"got {text}"


def cases_of(directory: Path) -> list[Json]:
    cases: list[Json] = json.loads((directory / "cases.json").read_text(encoding="utf-8"))["cases"]
    return cases
