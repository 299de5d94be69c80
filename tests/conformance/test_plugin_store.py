"""What every store promises to plugins, whatever it is made of."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.domain.errors import Denied
from gateway.domain.ports import PluginSpace, ToolStore
from gateway.store.opening import open_store
from tests.conformance.conftest import over
from tests.fakes.clock import FakeClock
from tests.fakes.plugin_store import FakePlugins
from tests.fakes.store import a_space
from tests.fakes.surreal import SurrealDatabase
from tests.forms import examples

Open = Callable[[], AbstractAsyncContextManager[ToolStore]]
KIB = 1024
SURROGATE = "\ud800"
ODD = ["", "%", "_", "*", "'", '"', "\\", "\0", "a\0", "a", "A", "a ", "@a", "é", "e\u0301", "../a"]
ODD += ["a:b", "a%3Ab", "\n", "\x7f", "\u202e", "\uffff", "\U0010ffff", SURROGATE, "\udc00"]
ODD += ["\ud83d\ude00", "\U0001f600", "ａ", "ß", "ss", "x" * 100_000, "None", "null"]


@asynccontextmanager
async def opening(url: str, data_dir: Path) -> AsyncIterator[ToolStore]:
    with anyio.fail_after(60):
        if url == "fake":
            yield FakePlugins()
            return
        async with open_store(url, data_dir, clock=FakeClock()) as stores:
            yield stores.tools


@asynccontextmanager
async def over_a_server(database: SurrealDatabase) -> AsyncIterator[ToolStore]:
    with anyio.fail_after(30):
        async with over(database) as stores:
            yield stores.tools


@pytest.fixture(params=["embedded", "shared", "fake"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "shared":
        database: SurrealDatabase = request.getfixturevalue("emptied_database")
        return lambda: over_a_server(database)
    return lambda: opening(request.param, tmp_path / "data")


async def fill(store: ToolStore, space: PluginSpace, keys: int, value: str = "") -> None:
    for number in range(keys):
        await store.set(space, f"{number:04d}", value)


async def denied(store: ToolStore, key: str, value: str, space: PluginSpace | None = None) -> str:
    with pytest.raises(Denied) as caught:
        await store.set(space or a_space(), key, value)
    return str(caught.value)


# --- what is set is there ----------------------------------------------------------------------


async def test_what_was_set_is_got_and_what_was_not_is_none(opened: Open) -> None:
    async with opened() as store:
        assert await store.get(a_space(), "k") is None
        await store.set(a_space(), "k", "first")
        await store.set(a_space(), "k", "second")
        assert await store.get(a_space(), "k") == "second"

        await store.delete(a_space(), "k")
        await store.delete(a_space(), "k")

        assert await store.get(a_space(), "k") is None
        assert list(await store.list(a_space(), "")) == []


async def test_any_text_comes_back_as_it_was(opened: Open) -> None:
    values = ["", "\0", "a\0b", "\x01\x1f\x7f\u202e\ufeff\uffff\U0001f600\r\n"]
    async with opened() as store:
        for number, value in enumerate(values):
            await store.set(a_space(), str(number), value)

        assert [await store.get(a_space(), str(one)) for one in range(len(values))] == values


# --- spaces ------------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Plugin-11")
async def test_no_space_shows_what_is_in_another(opened: Open) -> None:
    names = ["notes", "Notes", "notes ", "note", "s"]
    spaces = [PluginSpace(*parts) for parts in product(names, names, "ab")]
    async with opened() as store:
        for space in spaces:
            await store.set(space, "k", repr(space))
        await store.delete(spaces[0], "k")

        assert await store.get(spaces[0], "k") is None
        assert [await store.get(space, "k") for space in spaces[1:]] == list(map(repr, spaces[1:]))


@pytest.mark.requirement("S-003-Plugin-11")
async def test_persons_with_odd_names_are_kept_apart(opened: Open) -> None:
    persons = [None, *ODD]
    async with opened() as store:
        for number, person in enumerate(persons):
            await store.set(a_space(person), "k", str(number))
            await store.set(a_space(person), f"own{number}", "")

        for number, person in enumerate(persons):
            assert await store.get(a_space(person), "k") == str(number)
            assert list(await store.list(a_space(person), "")) == ["k", f"own{number}"]


async def test_parts_of_a_space_do_not_run_into_each_other(opened: Open) -> None:
    async with opened() as store:
        await store.set(PluginSpace("a", "b@", "c"), "k", "1")

        assert await store.get(PluginSpace("a", "b", "@c"), "k") is None
        assert await store.get(PluginSpace("ab", "@", "c"), "k") is None
        assert await store.get(PluginSpace("a", "b@c", None), "k") is None


# --- lists -------------------------------------------------------------------------------------


async def test_keys_are_listed_in_the_order_of_their_bytes(opened: Open) -> None:
    keys = ["b", "a", "aa", "a/b", "A", "é", "\uffff", "\U0001f600", "\U0010ffff", "a%", "a_"]
    async with opened() as store:
        for key in keys:
            await store.set(a_space(), key, "")

        assert list(await store.list(a_space(), "")) == sorted(keys, key=str.encode)


async def test_a_prefix_is_taken_as_it_is_written(opened: Open) -> None:
    async with opened() as store:
        for key in ["a", "a%b", "ab", "a_b", "A", "[a]", "a\U0010ffffb", "b"]:
            await store.set(a_space(), key, "")

        async def listed(prefix: str) -> list[str]:
            return list(await store.list(a_space(), prefix))

        assert await listed("a") == ["a", "a%b", "a_b", "ab", "a\U0010ffffb"]
        assert await listed("a%") == ["a%b"]
        assert await listed("a_") == ["a_b"]
        assert await listed("[a") == ["[a]"]
        assert await listed("a\U0010ffff") == ["a\U0010ffffb"]
        for odd in ("%", "_", "*", "a*", "a\0", "\0", SURROGATE, f"a{SURROGATE}", "a" * 10_000_000):
            assert await listed(odd) == [], odd[:20]


async def test_a_key_that_is_none_is_not_there_and_nothing_is_deleted(opened: Open) -> None:
    keys = ["", "\0", "a\0", SURROGATE, "\n", "k" * 257, "k" * 10_000_000]
    async with opened() as store:
        await store.set(a_space(), "k" * 256, "v")
        await store.set(a_space(), "a", "v")

        for key in keys:
            await store.delete(a_space(), key)

        assert [key for key in keys if await store.get(a_space(), key) is not None] == []
        assert list(await store.list(a_space(), "")) == ["a", "k" * 256]


# --- quotas ------------------------------------------------------------------------------------


async def test_a_key_of_1_to_256_bytes_is_kept(opened: Open) -> None:
    keys = ["k", "k" * 256, "é" * 128, "\U0001f600" * 64, " ", "\u202e"]
    async with opened() as store:
        for key in keys:
            await store.set(a_space(key), key, "v")

        assert [await store.get(a_space(key), key) for key in keys] == ["v"] * len(keys)
        assert [[*await store.list(a_space(key), key)] for key in keys] == [[key] for key in keys]


OTHER_KEYS = {
    "": "one character",
    "k" * 257: "256 bytes",
    "é" * 128 + "k": "256 bytes",
    "k" * 10_000_000: "256 bytes",
    "k" * 300 + SURROGATE: "256 bytes",
    "a\0": "control",
    "\x1f": "control",
    "a\x7fb": "control",
    "\x85": "control",
    SURROGATE: "surrogate",
}


async def test_another_key_is_denied_and_said_why(opened: Open) -> None:
    async with opened() as store:
        for key, limit in OTHER_KEYS.items():
            assert limit in await denied(store, key, "v"), key[:9]
        assert list(await store.list(a_space(), "")) == []


async def test_a_value_that_cannot_be_kept_is_denied_and_the_old_one_stays(opened: Open) -> None:
    large = ["v" * (64 * KIB + 1), "é" * (32 * KIB) + "v", "v" * 20_000_000]
    async with opened() as store:
        await store.set(a_space(), "k", "é" * (32 * KIB))

        for value in large:
            assert "65536 bytes" in await denied(store, "k", value), value[:9]
        assert "surrogate" in await denied(store, "k", SURROGATE)
        assert await store.get(a_space(), "k") == "é" * (32 * KIB)


async def test_a_space_has_room_for_1000_keys(opened: Open) -> None:
    async with opened() as store:
        await fill(store, a_space(), 1000)

        assert "1000 keys" in await denied(store, "more", "")
        assert await store.get(a_space(), "more") is None
        assert len(await store.list(a_space(), "")) == 1000
        await store.set(a_space(), "0007", "another value needs no room for a key")
        await store.set(a_space("bob"), "more", "another's room is another's")
        await store.delete(a_space(), "0008")
        await store.set(a_space(), "more", "now there is room")
        assert "1000 keys" in await denied(store, "0008", "")


async def test_a_space_has_room_for_a_mebibyte_of_keys_and_values(opened: Open) -> None:
    async with opened() as store:
        await fill(store, a_space(), 16, "v" * (64 * KIB - 4))

        assert "1048576 bytes" in await denied(store, "k", "")
        assert "1048576 bytes" in await denied(store, "0003", "v" * (64 * KIB - 3))
        await store.set(a_space(), "0003", "é" * (32 * KIB - 2))
        await store.set(a_space(), "0003", "v" * (64 * KIB - 14))
        await store.set(a_space(), "k", "nine left")
        assert "1048576 bytes" in await denied(store, "k", "nine left.")
        await store.set(a_space("bob"), "k", "v" * 64 * KIB)
        await store.delete(a_space(), "0001")
        await store.set(a_space(), "k", "v" * 64 * KIB)


async def test_what_is_deleted_leaves_all_of_its_room(opened: Open) -> None:
    async with opened() as store:
        for _ in range(2):
            await fill(store, a_space(), 16, "v" * (64 * KIB - 4))
            for key in await store.list(a_space(), ""):
                await store.delete(a_space(), key)

        assert list(await store.list(a_space(), "")) == []


async def test_of_many_at_once_no_more_are_kept_than_there_is_room_for(opened: Open) -> None:
    told: list[str] = []

    async def try_to_set(store: ToolStore, key: str) -> None:
        try:
            await store.set(a_space(), key, "v" * 64 * KIB)
        except Denied as error:
            told.append(str(error))

    async with opened() as store:
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(try_to_set, store, f"{number}")

        assert len(await store.list(a_space(), "")) == 15
        assert len(told) == 25


# --- whatever is done --------------------------------------------------------------------------

Step = tuple[str, PluginSpace, str, str]

keys = st.sampled_from(["a", "b", "a%", "é", "k" * 256, "", "a\0", SURROGATE, "k" * 257])
keys = keys | st.text(max_size=4)
values = st.sampled_from([0, 1, 3 * KIB, 32 * KIB, 64 * KIB, 64 * KIB + 1])
values_of = st.builds(str.__mul__, st.sampled_from("vé\0"), values)
spaces = st.builds(a_space, st.sampled_from([None, "", "ann"]))
steps: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(["set", "set", "set", "delete", "get", "list"]), spaces, keys, values_of
)


class Model:
    """The promise, counted anew at every step."""

    def __init__(self) -> None:
        self.kept: dict[PluginSpace, dict[str, str]] = {}

    def do(self, step: Step) -> object:
        kind, space, key, value = step
        kept = self.kept.setdefault(space, {})
        match kind:
            case "set":
                after = kept | {key: value}
                if not _is_allowed(after):
                    return Denied
                self.kept[space] = after
            case "delete":
                kept.pop(key, None)
            case "get":
                return kept.get(key)
            case "list":
                return sorted((one for one in kept if one.startswith(key)), key=str.encode)
        return None


def _is_allowed(kept: dict[str, str]) -> bool:
    try:
        sizes = [(len(key.encode()), len(value.encode())) for key, value in kept.items()]
    except UnicodeEncodeError:
        return False
    has_control = any(ord(sign) < 32 or 127 <= ord(sign) < 160 for key in kept for sign in key)
    fits = all(1 <= key <= 256 and value <= 64 * KIB for key, value in sizes)
    total = sum(key + value for key, value in sizes)
    return fits and not has_control and len(kept) <= 1000 and total <= KIB * KIB


async def do(store: ToolStore, step: Step) -> object:
    kind, space, key, value = step
    match kind:
        case "set":
            try:
                await store.set(space, key, value)
            except Denied:
                return Denied
        case "delete":
            await store.delete(space, key)
        case "get":
            return await store.get(space, key)
        case "list":
            return list(await store.list(space, key))
    return None


async def compare(url: str, data_dir: Path, walk: list[Step]) -> None:
    model = Model()
    async with opening(url, data_dir) as store:
        for step in walk:
            assert await do(store, step) == model.do(step), step[:3]
        for space, kept in model.kept.items():
            found = {key: await store.get(space, key) for key in await store.list(space, "")}
            assert found == kept


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["embedded", "fake"]), st.lists(steps, max_size=60))
@example("embedded", [("set", a_space(), f"{n % 18}", "v" * 64 * KIB) for n in range(40)])
@example("fake", [("set", a_space(), f"{n % 18}", "v" * 64 * KIB) for n in range(40)])
def test_whatever_is_done_the_store_answers_like_a_plain_dictionary(
    url: str, walk: list[Step]
) -> None:
    with TemporaryDirectory() as data_dir:
        anyio.run(compare, url, Path(data_dir), walk)
