"""docs/reference/protocol.md names every method, event, reason and scope, and none that is not there."""

import re
from dataclasses import fields
from pathlib import Path
from typing import cast, get_args

import pytest
from pydantic_core import from_json

from gateway.agent.output import STOPS, WARNINGS, LimitReading, StopKind, stop_text
from gateway.api.chunks import CHUNK_TYPES
from gateway.api.methods import METHODS
from gateway.domain import messages as chunks
from gateway.domain.agents import Limits
from gateway.domain.events import KINDS, Event
from gateway.domain.ids import RunId
from gateway.domain.messages import DoneReason
from gateway.web.documents import asyncapi, openapi
from tests.fakes.described import OPERATIONS
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import open_memory
from tests.sessions.stage import staged

ROOT = Path(__file__).parent.parent.parent
GUIDES = ("memory", "trees")  # to which it refers
PROTOCOL = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")


def rows(section: str) -> dict[str, str]:
    """First cell to the rest, of the first table after a heading."""
    text = PROTOCOL.split(f"\n## {section}", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| `([^`]+)` \|(.*)$", text, re.MULTILINE)
    return dict(found)


def test_every_method_is_documented_with_every_parameter_and_no_other() -> None:
    documented = rows("WebSocket")
    real = {method.name: method for method in METHODS}

    assert set(documented) == {*real, "auth"}
    for name, method in real.items():
        names = [name.rstrip("_") for name, _ in method.params.defaults]
        missing = [one for one in names if f"`{one}" not in documented[name]]
        assert not missing, f"{name} does not document {missing}"


def test_every_field_of_an_answer_or_an_event_is_documented() -> None:
    ours = [one for one in OPERATIONS if not one.path.startswith(("/v1", "/mcp"))]
    documents = (asyncapi(METHODS, "0"), openapi(ours, "0"))
    told = {name: it for one in documents for name, it in one["components"]["schemas"].items()}
    guides = [
        (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8") for name in GUIDES
    ]
    words = set(re.findall(r"\w+", "".join([PROTOCOL, *guides])))

    fields_of = {name: set(schema.get("properties", ())) for name, schema in told.items()}
    missing = {name: fields - words for name, fields in fields_of.items() if fields - words}
    assert missing == {}


def test_every_method_needs_the_scopes_that_are_documented() -> None:
    needs = rows("Authentication")
    named = {
        method: (scope,)
        for scope in ("chat", "read", "admin")
        for method in re.findall(r"`(\w+\.\w+)`", needs[scope])
    }

    for method in METHODS:
        assert method.scope == named.pop(method.name, ("chat", "read")), method.name
    assert not named


@pytest.mark.requirement("S-002-ANS-01")
def test_every_kind_of_event_is_documented_with_its_names_and_no_other() -> None:
    documented = {
        name: tuple(cell.strip(" `") or None for cell in rest.strip("|").split("|"))
        for name, rest in rows("Event notifications").items()
    }

    assert documented == {kind.type: (kind.severity, kind.constant, kind.hook) for kind in KINDS}


def test_every_field_of_an_event_notification_is_documented() -> None:
    section = PROTOCOL.split("\n## Event notifications", 1)[1].split("\n## ", 1)[0]
    documented = re.split(r",\s+", section.split("params `{", 1)[1].split("}`", 1)[0])

    assert documented == [field.name for field in fields(Event)]


def test_every_event_type_is_documented_and_no_other() -> None:
    assert set(rows("Events")) == set(CHUNK_TYPES)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("`done.reason`: ", get_args(chunks.DoneReason)),
        ("`error.error_type`: ", get_args(chunks.ErrorType)),
    ],
)
def test_every_ending_is_documented_and_no_other(line: str, values: tuple[str, ...]) -> None:
    text = PROTOCOL.split(line, 1)[1].split(".", 1)[0]

    assert set(re.findall(r"`(\w+)`", text)) == set(values)


def test_every_limit_is_documented_with_what_is_said_at_it_and_no_other() -> None:
    limits = Limits()
    stops: dict[str, StopKind] = {reason: said for reason, said in STOPS.items() if said.limit}
    documented = {
        name: [cell.strip() for cell in rest.strip("|").split("|")]
        for name, rest in rows("Limits").items()
        if name != "limit_type"
    }

    assert set(documented) == {*WARNINGS, *stops}
    for name, (warning, stop) in documented.items():
        said = stops.get(name)
        told = f"`{said.system_type}`: {stop_text(cast(DoneReason, name), limits)}" if said else ""
        assert stop == told
        assert re.sub(r"\d+", "#", warning) == WARNINGS.get(name, ("", ""))[1].format(
            current=0, limit=0
        ).replace("0", "#")
    for reason in (reason for reason in STOPS if reason not in stops):
        assert f"`{stop_text(reason, limits)}`" in PROTOCOL


@pytest.mark.parametrize("kind", sorted(WARNINGS))
def test_a_warning_tells_large_numbers_in_all_their_digits_as_documented(kind: str) -> None:
    _, text = WARNINGS[kind]

    assert "(734003/1048576" in text.format(current=734_003, limit=1_048_576)


def test_every_kind_of_system_event_and_its_metadata_are_documented() -> None:
    said = rows("Events")["system"].split("(", 1)[1].split(")", 1)[0]
    metadata = PROTOCOL.split("whose `metadata` is\n`{", 1)[1].split("}`", 1)[0]

    assert tuple(re.findall(r'"(\w+)"', said)) == get_args(chunks.SystemType)
    assert set(metadata.split(", ")) == set(LimitReading("max_iterations", 1, 2).metadata())


async def test_every_field_of_a_run_is_documented_and_no_other() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("hi")), stores) as stage:
        run_id = await stage.say("hello")
        await stage.until_idle()
        record = await stores.inbox.find_run(RunId(run_id))
    assert record is not None
    documented = rows("WebSocket")["run.inspect"].split("{", 1)[1].split("}", 1)[0]

    shown = from_json(record.summary).keys() - {"context"}  # that is shown by `context.explain`
    assert sorted(documented.split(", ")) == sorted(shown)


def test_every_route_is_documented_and_no_other() -> None:
    documented = {
        (method, path.replace("NAME", "{channel}"))
        for cells in re.findall(r"^\| (`.*) \|", PROTOCOL.split("\n## HTTP", 1)[1], re.MULTILINE)
        for path in re.findall(r"(/[^` ]*)`", cells.partition(" |")[0])
        for method in re.findall(r"[A-Z]{3,}", cells.partition(" /")[0])
    }
    socket = {("GET", "/ws")}  # that is no HTTP for long

    assert documented - socket == {
        (one.method, one.path.replace(":path", ""))
        for one in OPERATIONS
        if not one.path.endswith("/{rest:path}")
    }
