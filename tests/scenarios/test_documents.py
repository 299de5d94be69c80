"""What a gateway says of itself to programs is what it does."""

from pathlib import Path

from starlette.applications import Starlette

from gateway.api.http import ALIVE, READY, WEBHOOKS
from gateway.app.generation import web_settings
from gateway.config.schema import json_schema
from gateway.web.asgi import Described
from tests.fakes import described
from tests.fakes.client import http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import scripted_server
from tests.scenarios.scripts import echo

SERVING = "[mcp.serve]\nenabled = true\n"


async def test_every_route_is_in_the_document_and_nothing_else(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url, rest=SERVING), tmp_path) as site,
    ):
        document = (await http(f"{site.url}/openapi.json")).json
        app = site.rooms.web(web_settings(site.rooms.current.generation.config, "key"))

    starlette = app._routes._app
    assert isinstance(starlette, Starlette)
    routes = [route for route in starlette.routes if isinstance(route, Described)]
    assert routes == starlette.routes
    operations = [*(route.operation for route in routes), ALIVE, READY, *WEBHOOKS]
    assert {(one.method.lower(), one.path.replace(":path}", "}")) for one in operations} == {
        (method, path) for path, methods in document["paths"].items() for method in methods
    }


async def test_answers_are_held_against_the_document_that_is_served(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url, rest=SERVING), tmp_path) as site,
    ):
        served = described.closed((await http(f"{site.url}/openapi.json")).json)

    held = described.everything()
    assert served["components"] == held["components"]
    assert served["paths"] == held["paths"]


async def test_the_schema_of_the_configuration_is_the_one_that_is_printed(tmp_path: Path) -> None:
    async with scripted_server(echo) as model, running(Setup(model.url), tmp_path) as site:
        answer = await http(f"{site.url}/config.schema.json")

    assert answer.json == json_schema()
