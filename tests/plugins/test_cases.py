"""Every bundled plugin does what its recorded cases say, is what its plugin.toml says it is."""

import hashlib
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest

from tests.plugins.running import Guest, cases_of, problem

PLUGINS = Path(__file__).parent.parent.parent / "plugins"
NAMES = sorted(path.parent.name for path in PLUGINS.glob("*/plugin.toml"))
CAPABILITY_OF = {"clock": "host_function:clock", "random": "host_function:random"}


@pytest.fixture(scope="module", params=NAMES)
def directory(request: pytest.FixtureRequest) -> Path:
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
def test_every_tool_has_a_description_a_strict_schema_a_category_and_hints(directory: Path) -> None:
    tools = Guest.load(directory / "tool.wasm").describe()["tools"]

    for tool in tools:
        jsonschema_rs.validator_for(tool["parameters"])
        assert tool["parameters"]["additionalProperties"] is False
        assert all("description" in field for field in tool["parameters"]["properties"].values())
        assert set(tool["parameters"].get("required", [])) <= set(tool["parameters"]["properties"])
        assert tool["category"] in {"vault", "thread", "code", "web", "meta"}
        assert isinstance(tool["annotations"]["readOnlyHint"], bool)
        assert len(tool["description"]) > 20


def test_the_cases_use_every_tool_within_its_schema(directory: Path) -> None:
    tools = Guest.load(directory / "tool.wasm").describe()["tools"]
    schemas = {tool["name"]: jsonschema_rs.validator_for(tool["parameters"]) for tool in tools}
    used = set()

    for case in cases_of(directory):
        call = case["call"]
        if call["tool"] in schemas and "expect_error" not in case:
            schemas[call["tool"]].validate(call["arguments"])
            used.add(call["tool"])

    assert used == set(schemas)


def test_it_imports_what_its_capabilities_cover_and_nothing_else(directory: Path) -> None:
    about = tomllib.loads((directory / "plugin.toml").read_text())
    asked = {text.partition(":")[0] for text in about["capabilities"] + about.get("asks", [])}
    functions = {text.partition(":")[2] for text in about["capabilities"] if "function" in text}
    covered = {"log"} | (asked & {"http", "store"}) | (functions & {"clock", "random"})
    if functions - {"clock", "random"}:
        covered.add("host")

    assert Guest.load(directory / "tool.wasm").imports <= covered
    assert covered - {"log"} <= Guest.load(directory / "tool.wasm").imports
