"""The examples do the same in every language, stand alone, and are built as their README says."""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import anyio
import pytest

from gateway.cli.plugin_files import find_source, read_cases, try_all
from tests.plugins.running import Guest, Json, cases_of, problem

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "wasm-examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/plugin.toml"))
NOT_SHIPPED = "python"  # 18 MB
EXTISM = {"extism-assemblyscript"}  # core modules, which a bare component engine cannot run
COMPONENTS = [name for name in NAMES if name not in EXTISM]
TOOLS = [name for name in NAMES if name != "channel-js"]
Load = Callable[[str], Guest]
PACKAGE = ROOT / "gateway" / "sandbox" / "wit" / "exogate-plugin.wit"


@pytest.fixture(scope="module")
def load() -> Load:
    """Each file is compiled once: a whole Python in one takes seconds."""
    return cache(lambda name: Guest.load(wasm_of(name)))


def wasm_of(name: str) -> Path:
    path = EXAMPLES / name / "tool.wasm"
    if name == NOT_SHIPPED and not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not built: tools/build_guests.py {name}")
    return path


def about(name: str) -> Json:
    return tomllib.loads((EXAMPLES / name / "plugin.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_recorded_cases_come_out_as_recorded(name: str, load: Load) -> None:
    guest = load(name)

    problems = {
        case["name"]: why
        for case in cases_of(EXAMPLES / name)
        if (why := problem(case, *guest.run(case))) is not None
    }

    assert problems == {}


@pytest.mark.parametrize("name", COMPONENTS)
def test_it_imports_the_log_alone_and_uses_it(name: str, load: Load) -> None:
    guest = load(name)

    for case in cases_of(EXAMPLES / name):
        guest.run(case)

    assert guest.imports == {"log"}
    assert guest.logged


@pytest.mark.parametrize("name", COMPONENTS)
def test_what_it_says_of_itself_is_what_its_plugin_toml_says(name: str, load: Load) -> None:
    said = load(name).describe()

    for field in ("name", "version", "kind", "description"):
        assert said[field] == about(name)[field]


def test_the_guest_that_is_not_shipped_describes_the_same_tool(load: Load) -> None:
    assert load(NOT_SHIPPED).describe() == load("js").describe()


def test_every_language_describes_the_same_tool(load: Load) -> None:
    said = [load(n).describe() for n in TOOLS if n in COMPONENTS and n != NOT_SHIPPED]

    assert all(one == said[0] for one in said)
    assert said[0]["tools"][0]["name"] == said[0]["name"]


def test_every_language_has_the_same_cases() -> None:
    assert len({(EXAMPLES / name / "cases.json").read_bytes() for name in TOOLS}) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if name != NOT_SHIPPED])
def test_the_sha256_is_the_one_of_the_file(name: str) -> None:
    digest = hashlib.sha256((EXAMPLES / name / "tool.wasm").read_bytes()).hexdigest()

    assert about(name)["sha256"] == digest


@pytest.mark.parametrize("name", NAMES)
def test_its_readme_has_one_command_that_gets_what_it_needs_and_builds_it(name: str) -> None:
    readme = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    first = re.findall(r"```sh\n(.*?)\n```", readme, re.DOTALL)[0]
    build = about(name)["build"]

    assert "\n" not in first
    assert first.endswith("exogate plugin build .")
    for need in build["needs"]:  # npm's packages are got by the build itself
        assert need in (build["command"] if "@" in need else first)


@pytest.mark.parametrize("name", NAMES)
def test_it_stands_alone(name: str) -> None:
    for path in (EXAMPLES / name).rglob("*"):
        if path.is_file() and path.suffix != ".wasm":
            assert "../" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("name", NAMES)
def test_its_name_stands_only_where_another_may_take_its_place(name: str) -> None:
    """`plugin new` puts the new plugin's name wherever the example's stands."""
    for path in (EXAMPLES / name).rglob("*"):
        if path.suffix in {".wasm", ".json", ".md", ".toml"} or path.is_dir():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            around = line.replace(about(name)["name"], "\0")
            assert not re.search(r"\w\0|\0\w", around), f"{path}: {line}"


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("zig/exogate.zig", "../plugins/exogate.zig"),
        ("extism-assemblyscript/json.ts", "assemblyscript/json.ts"),
        ("python/wit/deps/exogate-plugin.wit", "js/wit/deps/exogate-plugin.wit"),
        ("channel-js/wit/deps/exogate-plugin.wit", "js/wit/deps/exogate-plugin.wit"),
    ],
)
def test_a_copy_is_still_the_same(copy: str, original: str) -> None:
    assert (EXAMPLES / copy).read_bytes() == (EXAMPLES / original).read_bytes()


def test_the_wit_package_is_the_published_one() -> None:
    copy = (EXAMPLES / "js" / "wit" / "deps" / "exogate-plugin.wit").read_text()

    # `%list` is how WIT writes a name that is also a word of its own.
    assert copy.replace("%list", "list") == PACKAGE.read_text().replace("%list", "list")


def test_a_plugin_of_the_public_extism_pdk_does_the_same(tmp_path: Path) -> None:
    folder = EXAMPLES / "extism-assemblyscript"
    cases = read_cases(folder / "cases.json")

    _, verdicts = anyio.run(try_all, tmp_path, find_source(str(folder)), cases)

    assert [one.name for one in verdicts if one.problem] == []
    assert len(verdicts) == len(cases)


def test_cases_are_json_with_names() -> None:
    for name in NAMES:
        cases = json.loads((EXAMPLES / name / "cases.json").read_text(encoding="utf-8"))["cases"]
        assert len({case["name"] for case in cases}) == len(cases)
