"""The official parser of AsyncAPI takes the document that a gateway serves."""

import json
import subprocess
from typing import Any

import httpx2
import pytest

from tests.oracles.conftest import NODE, Site

HERE = NODE.parents[2]


def diagnosed(document: dict[str, Any]) -> dict[str, Any]:
    """What the parser says: the version and operations that it found, and every diagnostic."""
    told = subprocess.run(
        [NODE, HERE / "asyncapi_parser.mjs"],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: dict[str, Any] = json.loads(told.stdout)
    return found


@pytest.fixture
def document(site: Site) -> dict[str, Any]:
    answer = httpx2.get(
        f"{site.url}/asyncapi.json", headers={"Authorization": f"Bearer {site.token}"}
    )
    assert answer.status_code == 200
    served: dict[str, Any] = answer.json()
    return served


def test_the_parser_finds_every_operation_and_nothing_to_say(document: dict[str, Any]) -> None:
    told = diagnosed(document)

    assert told["diagnostics"] == []
    assert told["version"] == "3.1.0"
    assert sorted(told["operations"]) == sorted(document["operations"])


def test_the_parser_would_have_said_something(document: dict[str, Any]) -> None:
    document["operations"]["ping"]["messages"] = [{"$ref": "#/channels/socket/messages/pong"}]
    document["channels"]["socket"]["messages"]["event"]["payload"]["required"] = "params"

    told = diagnosed(document)

    assert len(told["diagnostics"]) >= 2
    assert told["version"] is None
