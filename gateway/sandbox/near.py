"""IronClaw's tools: components that export near:agent/tool, one description and one schema each.

Which operations there are, their manifest says; here the operator lists them in the plugin's
configuration (`capability_ids`), and each is a tool. So it is with `authorization`: IronClaw's host adds
such a header to requests, and ours does if it is configured (as "Bearer ${secret:NAME}").
"""

import json
import re
from collections.abc import Mapping
from functools import partial

from wasmtime import Engine, Store, WasmtimeError
from wasmtime.component import Component, ExportIndex, Instance, Linker, Record, Variant

from gateway.sandbox.abis import NEAR_EXPORTS, NEAR_HOST, NEAR_TOOL
from gateway.sandbox.binding import ending
from gateway.sandbox.calls import Call, current, opened_store, trapped
from gateway.sandbox.components import HostFunction, define, gives, offer
from gateway.sandbox.fetching import fetch
from gateway.sandbox.programs import Program, Status

LONGEST_DESCRIPTION, LONGEST_SCHEMA = 4096, 512 * 1024
_ID = re.compile(r"[A-Za-z0-9_.-]+")
_ONLY_TOOL = "execute"  # of a guest whose operations nobody listed

Object = Mapping[str, object]


class NearGuest:
    """One loaded tool. Every call has an instance of its own; only code is shared."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._component = Component.deserialize_file(engine, program.path)
        self._linker = Linker(engine)
        config = dict(program.config)
        offer(self._linker, self._component, engine)
        _offer_host(self._linker, self._component, engine, config.get("authorization"))
        self._linker.define_unknown_imports_as_traps(self._component)
        exports = self._component.type.exports(engine)
        tool = next(name for name in exports if name.startswith(NEAR_TOOL))
        outer = self._component.get_export_index(tool)
        self._exports = {n: self._component.get_export_index(n, outer) for n in NEAR_EXPORTS}
        listed = _ID.findall(config.get("capability_ids", ""))
        self._ids = {one.rpartition(".")[2]: one for one in listed} or {_ONLY_TOOL: _ONLY_TOOL}

    def run(self, call: Call, function: str, text: str) -> tuple[Status, str]:
        if function not in {"describe", "handle-tool-call"}:
            return "invalid", f"it has no {function}"
        with opened_store(self._engine, call) as store:
            try:
                instance = self._linker.instantiate(store, self._component)
                ask = partial(self._called, store, instance)
                if function == "describe":
                    return self._described(str(ask("description")), str(ask("schema")))
                asked = json.loads(text)
                capability = self._ids.get(asked["tool"])
                if capability is None:
                    return "err", f"there is no tool {asked['tool']}"
                return _told(ask("execute", _request(capability, asked["arguments"])))
            except WasmtimeError as error:
                return trapped(call, error)

    def _called(self, store: Store, instance: Instance, name: str, *values: object) -> object:
        export: ExportIndex | None = self._exports[name]
        function = instance.get_func(store, export) if export is not None else None
        return function(store, *values) if function is not None else None

    def _described(self, description: str, schema: str) -> tuple[Status, str]:
        about = description[:LONGEST_DESCRIPTION]
        try:
            told = json.loads(schema[:LONGEST_SCHEMA])
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            return (
                "invalid",
                f"its schema is no JSON object of at most {LONGEST_SCHEMA // 1024} KiB",
            )
        tools = [
            {"name": name, "description": about, "parameters": _parameters(told, name)}
            for name in self._ids
        ]
        return "ok", json.dumps({"name": "near", "description": about, "tools": tools})


def _request(capability: str, arguments: object) -> Record:
    context = json.dumps({"capability_id": capability})
    return _record(params=json.dumps(arguments), context=context)


def _told(response: object) -> tuple[Status, str]:
    """Without the case's name: the binding tells a text from a failure."""
    if isinstance(response, str):
        return "ok", response
    words = (getattr(response, name, None) for name in ("kind", "code", "message"))
    return "err", ": ".join(word for word in words if word)


def _record(**fields: object) -> Record:
    """The binding's records have any field; those of WIT have dashes in their names."""
    record = Record()
    for name, value in fields.items():
        setattr(record, name.replace("_", "-"), value)
    return record


def _parameters(schema: Object, name: str) -> Object:
    """What of the one schema is about an operation: the branch that is tagged or titled with it."""
    if name == _ONLY_TOOL:
        return schema
    for branch in map(_object, _list(schema.get("oneOf"))):
        tag = _object(_object(branch.get("properties")).get("action"))
        if name in (tag.get("const"), *_list(tag.get("enum")), *str(branch.get("title")).split()):
            shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            return {**shared, **_untagged(branch)}
    return {}


def _untagged(branch: Object) -> Object:
    """It is the host that says which operation: a guest refuses arguments that say it too."""
    properties = {k: v for k, v in _object(branch.get("properties")).items() if k != "action"}
    required = [name for name in _list(branch.get("required")) if name != "action"]
    return {**branch, "properties": properties, "required": required}


def _object(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _offer_host(
    linker: Linker, component: Component, engine: Engine, authorization: str | None
) -> None:
    functions: dict[str, HostFunction] = {
        "log": _log,
        "now-millis": gives("clock.now", int),
        "workspace-read": lambda _store, _path: None,
        "http-request": partial(_http_request, authorization),
        "tool-invoke": lambda _store, _alias, _params: Variant("err", "tools cannot call tools"),
        "secret-exists": lambda _store, _name: False,
    }
    with linker.root() as root:
        for name in component.type.imports(engine):
            if name.startswith(NEAR_HOST):
                define(root, name, {key: ending(serve) for key, serve in functions.items()})


def _log(_store: object, level: str, message: str) -> None:
    current().log("debug" if level == "trace" else level, message)


def _http_request(
    authorization: str | None, _store: object, method: str, url: str, *rest: object
) -> Variant:
    headers_json, body, timeout_ms = rest
    try:
        headers = json.loads(str(headers_json) or "{}")
    except (ValueError, RecursionError):
        return _failure("input", "its headers are no JSON")
    if authorization is not None:
        headers = {**_object(headers), "authorization": authorization}
    request = {"method": method, "url": url, "headers": headers, "timeout_ms": timeout_ms}
    reply = fetch(request, body if isinstance(body, bytes) else None)
    if isinstance(reply, str):
        return _failure("operation-failed", reply)
    told = json.dumps(dict(reply.headers))
    return Variant("ok", _record(status=reply.status, headers_json=told, body=reply.body))


def _failure(kind: str, message: str) -> Variant:
    failure = _record(kind=kind, code=None, message=message, request_sent=False)
    return Variant("err", failure)
