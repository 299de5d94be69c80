"""The stages on which turns are played: each wire with each tree; and for tests that are marked so, both
engines of the store."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forms
from tests.fakes.gateway import ENGINE
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase
from tests.scenarios.stage import Stage, pairs

STORE = """
[store]
url = "{url}"
namespace = "tests"
database = "{database}-FOLDER"
username = "{user}"
password = "{password}"
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marked = metafunc.definition.get_closest_marker
    shared = marked("shared_store")
    if shared and not marked("embedded_store"):
        is_both = forms.is_long() or not shared.kwargs.get("only_long")
        engines = ["embedded", "shared"] if is_both else ["embedded"]
        metafunc.parametrize("engine", engines, indirect=True)
    if "stage" in metafunc.fixturenames:
        ids = [f"{wire}-{tree}" for wire, tree in pairs()]
        metafunc.parametrize("stage", pairs(), ids=ids, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the bounded form a case of several is played over one of the engines, so that each value of a
    parameter meets both where there are two parameters. A test of one case is played over both."""
    cases = defaultdict[tuple[object, str], dict[str, list[pytest.Item]]](lambda: defaultdict(list))
    for item in items:
        case = getattr(item, "callspec", None)
        if case is not None and "engine" in case.params and not forms.is_long():
            test = item.parent, getattr(item, "originalname", "")
            cases[test][case.params["engine"]].append(item)
    left = set[pytest.Item]()
    for some in cases.values():
        if len(some) == 2 and len(some["embedded"]) > 1:
            for number, both in enumerate(zip(*some.values(), strict=False)):
                left.add(both[number.bit_count() % 2 == 0])
    items[:] = [item for item in items if item not in left]


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    wire, tree = request.param
    return Stage(wire, tree, tmp_path)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plays a test that is marked `shared_store` over a SurrealDB server too; one that is marked with
    `only_long=True` in the long form only."""
    if getattr(request, "param", "embedded") == "shared":
        found: SurrealDatabase = request.getfixturevalue("surreal_database")
        credentials = {"user": USER, "password": PASSWORD}
        ENGINE.section = STORE.format(url=found.url, database=found.database, **credentials)
    yield
    ENGINE.section = ""
