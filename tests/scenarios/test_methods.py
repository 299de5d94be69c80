"""Whatever fits the AsyncAPI document is understood, and answered as it says."""

from pathlib import Path
from typing import Any

from gateway.api.methods import METHODS
from tests.fakes.client import Client, RpcError, http
from tests.fakes.fitting import Fitting
from tests.fakes.model_server import Asked, Reply
from tests.forms import examples
from tests.scenarios.scripts import talking

INTERNAL = -32603
# Of values that no schema can tell from others.
RULES = ("Value error", "only a dry run reads another file", "is not a path; write one like")


def reply(_asked: Asked) -> Reply:
    return Reply(["o", "k"])


async def told(client: Client, peer: str) -> dict[str, list[str]]:
    """What there is after a first word, by the names that parameters have."""
    sent = await client.send("I live in Rome.", peer=peer)
    await client.ended(sent["run_id"])
    key = sent["session_key"]
    nodes = (await client.call("session.tree", session_key=key))["nodes"]
    facts = (await client.call("memory.history", session_key=key))["facts"]
    return {
        "session_key": [key],
        "run_id": [sent["run_id"]],
        "node_id": [node["id"] for node in nodes],
        "fact_id": [fact["id"] for fact in facts],
        "agent": ["main"],
        "channel": ["websocket"],
        "account": ["local"],
        "peer": [peer],
        "subject": ["user"],
    }


async def outcome(client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The error of a call, if it is one; the client checks what it is sent."""
    try:
        await client.call(method, **params)
    except RpcError as error:
        return error.whole
    return {}


def is_understood(error: dict[str, Any]) -> bool:
    """Values that do not go together, which no schema says, are refused by a rule of their own."""
    problems = error.get("data", {}).get("problems", [])
    by_rule = all(any(rule in problem["message"] for rule in RULES) for problem in problems)
    return error.get("code") != INTERNAL and by_rule


async def tried(client: Client, document: dict[str, Any], method: str) -> list[dict[str, Any]]:
    """What came of calls that fit."""
    request = document["channels"]["socket"]["messages"][method]["payload"]
    params = request["properties"]["params"]
    fitting = Fitting(document["components"]["schemas"], await told(client, method), seed=1)
    return [await outcome(client, method, fitting.value(params)) for _ in range(examples(30))]


async def test_what_fits_the_document_is_understood(tmp_path: Path) -> None:
    async with talking(reply, tmp_path) as (_model, site, client):
        document = (await http(f"{site.url}/asyncapi.json")).json
        errors = {one.name: await tried(client, document, one.name) for one in METHODS}

    bad = {name: [one for one in some if not is_understood(one)] for name, some in errors.items()}
    assert {name: some for name, some in bad.items() if some} == {}
