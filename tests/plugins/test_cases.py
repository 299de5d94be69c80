"""Every bundled plugin does what its recorded cases say, is what its plugin.toml says it is."""

import hashlib
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest

from gateway.channels.adapter_json import read_description, read_formatted, read_parsed
from gateway.cli.configuration import known_names
from tests.plugins.running import KINDS, PLUGINS, Guest, cases_of, problem

TOOLS = [name for name, kind in KINDS.items() if kind == "tool"]
ADAPTERS = [name for name, kind in KINDS.items() if kind == "channel"]
CAPABILITY_OF = {"clock": "host_function:clock", "random": "host_function:random"}


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest) -> Path:
    return PLUGINS / str(request.param)


@pytest.fixture(scope="module", params=TOOLS)
def tool(request: pytest.FixtureRequest) -> Path:
    return PLUGINS / str(request.param)


@pytest.fixture(scope="module", params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Path:
    return PLUGINS / str(request.param)


def test_the_recorded_cases_come_out_as_recorded(directory: Path) -> None:
    guest = Guest.load(directory / "tool.wasm")

    problems = {
        case["name"]: why
        for case in cases_of(directory)
        if (why := problem(case, *guest.run(case))) is not None
    }

    assert problems == {}


def test_the_sha256_is_the_one_of_the_file(directory: Path) -> None:
    about = tomllib.loads((directory / "plugin.toml").read_text())

    assert about["sha256"] == hashlib.sha256((directory / "tool.wasm").read_bytes()).hexdigest()


def test_what_it_says_of_itself_is_what_its_plugin_toml_says(directory: Path) -> None:
    about = tomllib.loads((directory / "plugin.toml").read_text())

    said = Guest.load(directory / "tool.wasm").describe()

    assert {key: said[key] for key in ("name", "version", "kind", "description")} == {
        key: about[key] for key in ("name", "version", "kind", "description")
    }
    assert about["name"] == directory.name


@pytest.mark.requirement("S-000-Tool-02", "S-000-Tool-03", "S-000-Tool-05")
def test_every_tool_has_a_description_a_strict_schema_a_category_and_hints(tool: Path) -> None:
    tools = Guest.load(tool / "tool.wasm").describe()["tools"]

    for one in tools:
        jsonschema_rs.validator_for(one["parameters"])
        assert one["parameters"]["additionalProperties"] is False
        assert all("description" in field for field in one["parameters"]["properties"].values())
        assert set(one["parameters"].get("required", [])) <= set(one["parameters"]["properties"])
        assert one["category"] in {"vault", "thread", "code", "web", "meta"}
        assert isinstance(one["annotations"]["readOnlyHint"], bool)
        assert len(one["description"]) > 20


def test_the_cases_use_every_tool_within_its_schema(tool: Path) -> None:
    tools = Guest.load(tool / "tool.wasm").describe()["tools"]
    schemas = {one["name"]: jsonschema_rs.validator_for(one["parameters"]) for one in tools}
    used = set()

    for case in cases_of(tool):
        call = case["call"]
        if call["tool"] in schemas and "expect_error" not in case:
            schemas[call["tool"]].validate(call["arguments"])
            used.add(call["tool"])

    assert used == set(schemas)


def test_it_imports_what_its_capabilities_cover_and_nothing_else(directory: Path) -> None:
    about = tomllib.loads((directory / "plugin.toml").read_text())
    asked = {text.partition(":")[0] for text in about["capabilities"] + about.get("asks", [])}
    functions = {text.partition(":")[2] for text in about["capabilities"] if "function" in text}
    # An adapter reaches no network: `http:` is where the host sends what it wrote.
    reached = {"store"} if about["kind"] == "channel" else {"http", "store"}
    covered = {"log"} | (asked & reached) | (functions & {"clock", "random"})
    if functions - {"clock", "random"}:
        covered.add("host")

    assert Guest.load(directory / "tool.wasm").imports <= covered
    assert covered - {"log"} <= Guest.load(directory / "tool.wasm").imports


def test_what_an_adapter_says_can_be_used_by_the_host(adapter: Path) -> None:
    guest = Guest.load(adapter / "tool.wasm")
    used = set()

    description = read_description(guest.call("describe"))
    keys = {
        f"secrets.{one.secret}" if one.secret else f"config.{one.key}"
        for one in description.recipes
    }
    is_called = description.transports[0].type == "webhook"
    bundled = known_names().bundled[adapter.name]
    assert (bundled.proofs, bundled.is_called) == (list(keys), is_called)
    for case in cases_of(adapter):
        if "expect_error" not in case:
            export = case["call"]["export"]
            read = read_parsed if export == "parse-incoming" else read_formatted
            read(guest.run(case)[1])
            used.add(export)

    assert used == {"parse-incoming", "format-outgoing"}


def test_every_plugin_has_its_source_and_every_adapter_a_platform_to_try_it(
    directory: Path,
) -> None:
    is_tool = KINDS[directory.name] == "tool"

    files = {path.name for path in directory.iterdir() if path.name != "core.wasm"}

    own = {"tool.zig"} if is_tool else {"adapter.zig", "platform.json"}
    assert files == own | {"plugin.toml", "tool.wasm", "cases.json"}
