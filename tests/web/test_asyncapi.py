"""The AsyncAPI document describes every method and event as they are sent."""

from functools import cache
from pathlib import Path
from typing import Any

from gateway.api.chunks import CHUNK_TYPES
from gateway.api.errors import FAILURES
from gateway.api.methods import METHODS
from gateway.web.documents import asyncapi
from tests.fakes.client import connected, http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Reply, scripted_server

TOLD = cache(asyncapi)  # made once for all tests that read it
NAMES = {"auth", *(method.name for method in METHODS)}


def messages() -> dict[str, Any]:
    told: dict[str, Any] = TOLD(METHODS, "1.2.3")["channels"]["socket"]["messages"]
    return told


async def test_a_gateway_serves_the_document_of_the_methods_that_it_has(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("ok")]) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        version = (await client.call("status"))["version"]
        served = (await http(f"{site.url}/asyncapi.json")).json
        unknown = await client.refused("no.method")

    assert served == asyncapi(METHODS, version)
    assert unknown.code == -32601


def test_every_method_is_an_operation_that_is_replied_to_and_nothing_else_is() -> None:
    told = TOLD(METHODS, "1.2.3")

    replied = {name for name, one in told["operations"].items() if one["action"] == "receive"}
    assert replied == NAMES
    assert told["operations"].keys() - replied == {"chat.event", "event"}
    results = {f"{name}.result" for name in NAMES}
    assert messages().keys() == NAMES | results | {"error", "chat.event", "event"}
    assert all(one["summary"].endswith(".") for one in told["operations"].values())


def test_every_type_of_chunk_is_told_apart_and_no_other() -> None:
    pieces = messages()["chat.event"]["payload"]["properties"]["params"]["oneOf"]
    told = TOLD(METHODS, "1.2.3")["components"]["schemas"]

    names = [piece["$ref"].rpartition("/")[2] for piece in pieces]
    assert [told[name]["properties"]["type"]["const"] for name in names] == list(CHUNK_TYPES)


def test_parameters_are_as_they_are_validated() -> None:
    params = messages()["memory.search"]["payload"]["properties"]["params"]

    assert params["additionalProperties"] is False
    assert params["required"] == ["query"]
    assert params["properties"]["limit"]["maximum"] == 100
    assert "params" in messages()["memory.search"]["payload"]["required"]
    assert "params" not in messages()["ping"]["payload"]["required"]


def test_every_code_of_an_error_is_told_with_its_types() -> None:
    error = messages()["error"]["payload"]["properties"]["error"]

    told = {
        (kind["properties"]["code"]["const"], name)
        for kind in error["oneOf"]
        for name in kind["properties"]["data"]["properties"]["type"]["enum"]
    }
    assert told == {(one.rpc, one.type) for one in FAILURES.values()} | {(-32603, "internal_error")}


def test_no_two_types_share_a_name_and_none_is_for_us_alone() -> None:
    names = TOLD(METHODS, "1.2.3")["components"]["schemas"]

    assert [name for name in names if "__" in name or name.startswith("_")] == []
