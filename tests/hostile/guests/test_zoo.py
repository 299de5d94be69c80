"""Each hostile guest ends as it should, costs the gateway nothing, and a good call right after works."""

import os
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.domain.plugins import PluginDef, PluginLimits
from gateway.sandbox.plugins import Loaded, PluginRefused
from gateway.sandbox.pool import Outcome
from tests.fakes.clock import now_about
from tests.fakes.fetch import FakeFetch
from tests.fakes.sandbox import Stage, a_stage, means
from tests.fakes.wat import ECHO, built

GUESTS = Path(__file__).parent
GRANTS = (
    "http:example.com",
    "store:notes",
    "host_function:clock",
    "host_function:random",
    "host_function:up",
)
REQUEST = '{"url": "https://example.com/"}'


@dataclass(frozen=True)
class Ends:
    """How a call of it ends: one of these statuses, with these words."""

    statuses: str
    words: str
    given: str = REQUEST


SPINS = "fuel timeout"  # whichever bound is reached first on this machine
ENDED = {
    "endless_loop": Ends(SPINS, "it "),
    "endless_fill": Ends(SPINS, "it "),
    "realloc_loops": Ends(SPINS, "it "),
    "post_return_loops": Ends(SPINS, "it "),
    "sleeper": Ends("timeout", "did not end in time"),
    "memory_grow_bomb": Ends("err", REQUEST),  # it is told no, and says so
    "table_grow_bomb": Ends("ok", REQUEST),  # told no at 20,000 places
    "deep_recursion": Ends("stack", "call stack overflowed"),
    "unreachable": Ends("trap", "panicked"),
    "misleading_name": Ends("trap", "panicked"),
    "division_by_zero": Ends("trap", "divided by zero"),
    "out_of_bounds": Ends("trap", "out of bounds"),
    "huge_output": Ends("output_too_large", "larger than 1024 KiB", "2097152"),
    "huge_error": Ends("output_too_large", "larger than 1024 KiB"),
    "output_past_memory": Ends("trap", "outside its memory"),
    "output_wraps": Ends("trap", "outside its memory"),
    "answer_past_memory": Ends("trap", "it "),
    "answer_unaligned": Ends("trap", "it "),
    "no_such_case": Ends("trap", "it "),
    "no_such_level": Ends("trap", "it "),
    "bad_realloc": Ends("trap", "outside its memory"),
    "invalid_utf8": Ends("invalid", "not UTF-8"),
    "not_json": Ends("invalid", "not valid JSON"),
    "json_nan": Ends("invalid", "not valid JSON"),
    "json_surrogate": Ends("invalid", "not valid JSON"),
    "json_depth": Ends("invalid", "not valid JSON"),
    "json_duplicate_keys": Ends("ok", '{"a": 1, "a": 2}'),
    "json_huge_number": Ends("ok", '{"a": 1e999999}'),
    "error_with_escapes": Ends("err", "x"),
    "counter": Ends("ok", "1"),
    "log_flood": Ends("host_calls", "too often"),
    "log_megabytes": Ends("ok", "1"),
    "log_escapes": Ends("ok", "2"),
    "host_call_storm": Ends("host_calls", "too often"),
    "http_storm": Ends("err", "at most 20 requests"),
    "store_storm": Ends("host_calls", "too often"),
    "huge_host_call": Ends("err", "at most 192 KiB"),
    "host_result_past_memory": Ends("trap", "outside its memory"),
    "random_flood": Ends("ok", "1"),
    "sockets": Ends("denied", "plugins may not call"),
    "files": Ends("denied", "plugins may not call"),
}
REFUSED = {
    "loop_at_start": "describe failed: it ",
    "start_asks": "called the host too often|did not end in time",
    "memory_at_once": "more memory than it may have",
    "many_memories": "more than it may have",
    "many_instances": "more than it may have",
    "table_bomb": "larger tables than it may have",
    "describe_traps": "panicked",
    "describe_loops": "describe failed: it ",
    "describe_ten_megabytes": "larger than 1024 KiB",
    "describe_not_json": "Invalid JSON",
    "describe_lies": "tools: Input should be a valid array",
    "http_not_granted": "exogate:plugin/http@1.0.0#request, which needs the capability http:HOST",
    "unknown_interface": "it imports evil:corp/shell@1.0.0, which the host does not offer",
    "other_version": "the host offers exogate:plugin in version 1.0.0",
    "other_type": "as ()->string; it must be ()->u64",
    "other_function": "there is no such function",
    "memory_import": "it crashed",
    "no_exports": "a tool exports describe and handle-tool-call",
    "describe_alone": "a tool exports describe and handle-tool-call",
    "half_a_world": "the export describe is missing",
    "answers_bytes": "it must be (string)->result<string,string>",
    "core_without_abi": "not an Extism plugin",
    "core_imports_env": "env#system, which the host does not offer",
}
SHORT = PluginLimits(timeout_s=0.2)


async def wat(name: str) -> bytes:
    text = await anyio.Path(GUESTS / f"{name}.wat").read_text(encoding="utf-8")
    return built(text)


async def up(text: str, plugin: PluginDef) -> str:
    return text.upper()


async def outcome_of(stage: Stage, name: str, given: str) -> Outcome:
    """How the call ends. Others work right after it."""
    limits = SHORT if "timeout" in ENDED[name].statuses else PluginLimits()
    guest = await stage.load(await wat(name), *GRANTS, name=name, limits=limits)
    outcome = await stage.run(guest, given)
    await assert_others_work(stage)
    return outcome


async def problem_of(stage: Stage, name: str) -> str:
    """Why it is not loaded. Others work right after it."""
    grants = () if name == "http_not_granted" else GRANTS
    with pytest.raises(PluginRefused, match=f"^plugin {name}: ") as refused:
        await stage.load(await wat(name), *grants, name=name, limits=SHORT)
    await assert_others_work(stage)
    return refused.value.problem


async def assert_others_work(stage: Stage) -> None:
    good = await stage.load(ECHO, name="good")
    assert (await stage.run(good, '"still here"')).text == "still here"


def test_every_guest_of_the_zoo_is_tried() -> None:
    assert {path.stem for path in GUESTS.glob("*.wat")} == {*ENDED, *REFUSED}
    assert len({*ENDED, *REFUSED}) >= 60


@pytest.mark.requirement("S-003-Plugin-05", "S-003-Plugin-14")
async def test_a_hostile_call_ends_as_it_should(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(functions={"up": up})) as stage:
            outcomes = {name: await outcome_of(stage, name, ENDED[name].given) for name in ENDED}

    for name, outcome in outcomes.items():
        assert outcome.status in ENDED[name].statuses.split(), name
        assert ENDED[name].words in outcome.text, name
        assert len(outcome.text) < 500, name
        if outcome.status not in {"ok", "err"}:
            assert outcome.text.isprintable(), name  # our words, none of the guest's
            assert outcome.wall_ms < now_about(5_000), name


@pytest.mark.requirement("S-003-Plugin-08", "S-003-Plugin-12", "S-003-Plugin-14")
async def test_a_hostile_guest_is_refused_at_load(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            problems = {name: await problem_of(stage, name) for name in REFUSED}

    for name, problem in problems.items():
        assert any(words in problem for words in REFUSED[name].split("|")), name
        assert problem.isprintable(), name


@pytest.mark.requirement("S-003-Plugin-15")
async def test_nothing_of_a_call_is_left_for_the_next(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            guest = await stage.load(await wat("counter"))
            said = [(await stage.run(guest)).text for _ in range(3)]

    assert said == ["1", "1", "1"]


async def test_sixty_megabytes_of_output_are_refused(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            outcome = await outcome_of(stage, "huge_output", "62914560")

    assert outcome.status == "output_too_large"


async def test_a_storm_of_requests_reaches_the_network_twenty_times(
    cache: Path, tmp_path: Path
) -> None:
    fetch = FakeFetch()

    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(fetch=fetch)) as stage:
            await outcome_of(stage, "http_storm", REQUEST)

    assert len(fetch.asked) == 20


@pytest.mark.requirement("S-003-Plugin-14")
async def test_fuel_ends_a_call_long_before_its_time(cache: Path, tmp_path: Path) -> None:
    limits = PluginLimits(timeout_s=30, fuel=1_000_000)
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            guest = await stage.load(await wat("endless_loop"), limits=limits)
            outcome = await stage.run(guest)

    assert outcome.status == "fuel"
    assert outcome.fuel == 1_000_000


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def call_often(stage: Stage, good: Loaded, bad: Loaded, turns: int) -> None:
    """Fifty calls a turn."""
    for _ in range(turns):
        await stage.run(bad)
        for _ in range(49):
            await stage.run(good)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
async def test_a_thousand_instances_leave_no_memory_behind(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with a_stage(cache, tmp_path) as stage:
            good = await stage.load(ECHO, name="good")
            bad = await stage.load(await wat("memory_grow_bomb"), name="bad")
            sizes: list[int] = []
            for turns in (1, 20):
                await call_often(stage, good, bad, turns)
                sizes.append(await to_thread.run_sync(resident_bytes, stage.worker))

    assert sizes[1] - sizes[0] < 8 * 1024 * 1024
