"""IronClaw's tools: one component, many operations, and a host that adds what its own would add."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from wasmtime import Engine
from wasmtime.component import Component

from gateway.sandbox.compiler import NotAPlugin, inspect_component
from gateway.sandbox.components import NearGuest
from tests.fakes.guests import Answered, ask, component_program

_ERRORS = '"auth-required" "input" "output-too-large" "executor" "network-denied" "client" "operation-failed"'  # fmt: skip
_SCHEMA = {
    "oneOf": [
        {
            "properties": {"action": {"const": "get_it"}, "id": {"type": "string"}},
            "required": ["action", "id"],
        },
        {"title": "Thing put_it input", "properties": {"id": {"$ref": "#/$defs/id"}}},
    ],
    "$defs": {"id": {"type": "string"}},
}
# Its answer is what it was given: parameters, or (asked for "url") the body of what it fetched.
_WAT = """(component
  (import "near:agent/host@0.4.1" (instance $host
    (type $kind' (enum {errors})) (export "http-error-kind" (type $kind (eq $kind')))
    (type $level' (enum "trace" "debug" "info" "warn" "error")) (export "log-level" (type $level (eq $level')))
    (type $response' (record (field "status" u16) (field "headers-json" string) (field "body" (list u8))))
    (export "http-response" (type $response (eq $response')))
    (type $failure' (record (field "kind" $kind) (field "code" (option string)) (field "message" (option string)) (field "request-sent" bool)))
    (export "http-failure" (type $failure (eq $failure')))
    (export "log" (func (param "level" $level) (param "message" string)))
    (export "workspace-read" (func (param "path" string) (result (option string))))
    (export "secret-exists" (func (param "name" string) (result bool)))
    (export "now-millis" (func (result u64)))
    (export "http-request" (func (param "method" string) (param "url" string) (param "headers-json" string)
      (param "body" (option (list u8))) (param "timeout-ms" (option u32)) (result (result $response (error $failure)))))))
  (core module $memory (memory (export "memory") 2) (global $free (mut i32) (i32.const 8192))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
      (global.set $free (i32.add (local.get $at) (local.get 3)))
      (local.get $at)))
  (core instance $shared (instantiate $memory))
  (alias core export $shared "memory" (core memory $m))
  (alias core export $shared "realloc" (core func $realloc))
  (alias export $host "log" (func $log))
  (alias export $host "http-request" (func $http))
  (alias export $host "workspace-read" (func $read))
  (alias export $host "secret-exists" (func $secret))
  (core func $log (canon lower (func $log) (memory $m)))
  (core func $http (canon lower (func $http) (memory $m) (realloc $realloc)))
  (core func $read (canon lower (func $read) (memory $m) (realloc $realloc)))
  (core func $secret (canon lower (func $secret) (memory $m)))
  (core module $main
    (import "shared" "memory" (memory 2))
    (import "host" "log" (func $log (param i32 i32 i32)))
    (import "host" "http" (func $http (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
    (import "host" "read" (func $read (param i32 i32 i32)))
    (import "host" "secret" (func $secret (param i32 i32) (result i32)))
    (data (i32.const 1024) "{schema}")
    (data (i32.const 4096) "POST https://a.example/ {{\\"x\\":\\"1\\"}}body")
    (func (export "schema") (result i32)
      (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const {size})) (i32.const 0))
    (func (export "description") (result i32)
      (i32.store (i32.const 0) (i32.const 4096)) (i32.store (i32.const 4) (i32.const 4)) (i32.const 0))
    (func $failed (param $at i32) (result i32)
      (memory.fill (i32.const 16) (i32.const 0) (i32.const 48))
      (i32.store (i32.const 16) (i32.const 1))
      (i32.store8 (i32.const 20) (i32.const 1))
      (i32.store (i32.const 36) (i32.const 1))
      (i32.store (i32.const 40) (i32.load (local.get $at)))
      (i32.store (i32.const 44) (i32.load offset=4 (local.get $at)))
      (i32.const 16))
    (func (export "execute") (param $params i32) (param $size i32) (param $has i32) (param $context i32) (param $length i32) (result i32)
      (call $log (i32.const 0) (local.get $context) (local.get $length))
      (call $read (i32.const 4096) (i32.const 4) (i32.const 200))
      (if (i32.or (call $secret (i32.const 4096) (i32.const 4)) (i32.load8_u (i32.const 200))) (then unreachable))
      (i32.store (i32.const 16) (i32.const 0))
      (i32.store (i32.const 20) (local.get $params))
      (i32.store (i32.const 24) (local.get $size))
      (if (i32.eq (local.get $size) (i32.const 2)) (then (return (i32.const 16))))
      (call $http (i32.const 4096) (i32.const 4) (i32.const 4101) (i32.const 18) (i32.const 4120) (i32.const 9)
        (i32.const 1) (i32.const 4129) (i32.const 4) (i32.const 1) (i32.const 500) (i32.const 300))
      (if (i32.load8_u (i32.const 300)) (then (return (call $failed (i32.const 324)))))
      (i32.store (i32.const 20) (i32.load (i32.const 316)))
      (i32.store (i32.const 24) (i32.load (i32.const 320)))
      (i32.const 16)))
  (core instance $main (instantiate $main (with "shared" (instance $shared)) (with "host" (instance
    (export "log" (func $log)) (export "http" (func $http)) (export "read" (func $read)) (export "secret" (func $secret))))))
  (type $request' (record (field "params" string) (field "context" (option string))))
  (type $kind' (enum {errors}))
  (type $failure' (record (field "kind" $kind') (field "code" (option string)) (field "message" (option string))))
  (type $response' (variant (case "success" string) (case "failure" $failure')))
  (func $execute' (param "req" $request') (result $response')
    (canon lift (core func $main "execute") (memory $m) (realloc $realloc)))
  (func $schema' (result string) (canon lift (core func $main "schema") (memory $m)))
  (func $description' (result string) (canon lift (core func $main "description") (memory $m)))
  (component $tool
    (type $q (record (field "params" string) (field "context" (option string))))
    (import "request" (type $request' (eq $q)))
    (type $k (enum {errors}))
    (import "kind" (type $kind' (eq $k)))
    (type $f (record (field "kind" $kind') (field "code" (option string)) (field "message" (option string))))
    (import "failure" (type $failure' (eq $f)))
    (type $r (variant (case "success" string) (case "failure" $failure')))
    (import "response" (type $response' (eq $r)))
    (import "execute" (func $e (param "req" $request') (result $response')))
    (import "schema" (func $s (result string)))
    (import "description" (func $d (result string)))
    (export $request "request" (type $request'))
    (export $kind "error-kind" (type $kind'))
    (type $f2 (record (field "kind" $kind) (field "code" (option string)) (field "message" (option string))))
    (export $failure "guest-failure" (type $failure') (type (eq $f2)))
    (type $r2 (variant (case "success" string) (case "failure" $failure)))
    (export $response "response" (type $response') (type (eq $r2)))
    (export "execute" (func $e) (func (param "req" $request) (result $response)))
    (export "schema" (func $s))
    (export "description" (func $d)))
  (instance $tool (instantiate $tool (with "request" (type $request')) (with "kind" (type $kind'))
    (with "failure" (type $failure')) (with "response" (type $response'))
    (with "execute" (func $execute')) (with "schema" (func $schema')) (with "description" (func $description'))))
  (export "near:agent/tool@0.4.1" (instance $tool)))"""


def wat(schema: str = json.dumps(_SCHEMA)) -> str:
    quoted = schema.replace('"', '\\"')
    return _WAT.format(errors=_ERRORS, schema=quoted, size=len(schema))


@pytest.fixture
def load(components: Engine, tmp_path: Path) -> Callable[..., NearGuest]:
    def loaded(text: str = wat(), **config: str) -> NearGuest:
        return NearGuest(components, component_program(components, tmp_path, text, config, "near"))

    return loaded


def call(
    guest: NearGuest,
    tool: str,
    arguments: object,
    answers: Callable[..., tuple[str, ...]] | None = None,
) -> Answered:
    text = json.dumps({"tool": tool, "arguments": arguments})
    return ask(guest, text, answers) if answers is not None else ask(guest, text)


def tools(guest: NearGuest) -> dict[str, dict[str, object]]:
    told = json.loads(ask(guest, function="describe").text)
    return {tool["name"]: tool["parameters"] for tool in told["tools"]}


def test_it_is_recognised_by_its_export_and_held_to_its_types(components: Engine) -> None:
    found = inspect_component(Component(components, wat()), components)

    assert (found.guest, found.kind) == ("near", "tool")
    assert "near:agent/host@0.4.1#http-request" in found.imports
    for changed, why in (
        (wat().replace("near:agent/tool@0.4.1", "near:agent/tool@0.3.0"), "only near:agent/tool@0.4"),
        (wat().replace("near:agent/host@0.4.1", "near:agent/host@0.3.0"), "which the host does not offer"),
        (wat().replace('"secret-exists" (func (param "name" string) (result bool))', '"fly" (func (param "name" string) (result bool))').replace('$host "secret-exists"', '$host "fly"'), "there is no such function"),
    ):  # fmt: skip
        with pytest.raises(NotAPlugin, match=why):
            inspect_component(Component(components, changed), components)


def test_each_listed_operation_is_a_tool_with_its_part_of_the_schema(
    load: Callable[..., NearGuest],
) -> None:
    found = tools(load(capability_ids="thing.get_it, thing.put_it thing.other"))

    assert found == {
        "get_it": {
            "$defs": {"id": {"type": "string"}},
            "properties": {"id": {"type": "string"}},
            "required": ["id"],
        },
        "put_it": {
            "$defs": {"id": {"type": "string"}},
            "title": "Thing put_it input",
            "properties": {"id": {"$ref": "#/$defs/id"}},
            "required": [],
        },
        "other": {},
    }


def test_a_guest_whose_operations_nobody_listed_is_one_tool(load: Callable[..., NearGuest]) -> None:
    assert tools(load()) == {"execute": _SCHEMA}


@pytest.mark.parametrize(
    "schema", ["[1]", "no", '{"oneOf": 3}', '{"oneOf": [3, {"properties": 4}]}']
)
def test_a_schema_of_any_kind_is_no_crash(load: Callable[..., NearGuest], schema: str) -> None:
    answered = ask(load(wat(schema), capability_ids="a.b"), function="describe")

    assert answered.status == ("ok" if schema.startswith("{") else "invalid")


def test_the_operation_is_told_by_the_host(load: Callable[..., NearGuest]) -> None:
    answered = call(load(capability_ids="thing.get_it"), "get_it", {})

    assert (answered.status, answered.text) == ("ok", "{}")
    assert answered.logged == [("debug", '{"capability_id": "thing.get_it"}')]


def test_an_operation_that_was_not_listed_is_told(load: Callable[..., NearGuest]) -> None:
    answered = call(load(capability_ids="thing.get_it"), "put_it", {})

    assert (answered.status, answered.text) == ("err", "there is no tool put_it")


@pytest.mark.parametrize("authorization", [None, "Bearer ${secret:TOKEN}"])
def test_a_request_is_made_by_the_host_with_what_is_configured(
    load: Callable[..., NearGuest], authorization: str | None
) -> None:
    config = {} if authorization is None else {"authorization": authorization}
    body = "answer " * 1000

    def answers(_asked: tuple[str, ...]) -> tuple[str, ...]:
        return "ok", json.dumps({"status": 200, "headers": {}, "body": "body"}), body

    answered = call(load(**config), "execute", {"url": 1}, answers)

    assert (answered.status, answered.text) == ("ok", body)
    assert json.loads(answered.said[1][1]) == {
        "method": "POST",
        "url": "https://a.example/",
        "headers": {"x": "1", **config},
        "body_base64": "Ym9keQ==",
        "timeout_ms": 500,
    }


def test_a_refused_request_is_the_guests_to_answer_for(load: Callable[..., NearGuest]) -> None:
    answered = call(load(), "execute", {"url": 1})

    assert (answered.status, answered.text) == ("err", "input: not granted")


def test_what_it_has_not_is_told(load: Callable[..., NearGuest]) -> None:
    assert ask(load(), function="parse-incoming").status == "invalid"
