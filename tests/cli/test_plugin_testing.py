"""Recorded cases run in the real sandbox, in a world made of what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.app.doctor import BadPlugin
from gateway.cli.plugin_files import CASES, Case, PluginSource, find_source, read_cases, try_all
from tests.cli.plugin_bench import CLOCK, STORE, guest

ROOT = Path(__file__).parents[2]
CALL = {"tool": "time", "arguments": {}}


def bundled(name: str) -> PluginSource:
    return find_source(str(ROOT / "plugins" / name))


def a_case(**fields: Any) -> Case:
    return Case.model_validate({"name": "it", "call": CALL, **fields})


@pytest.mark.parametrize("name", ["echo", "notes"])
def test_bundled_plugins_do_what_was_recorded(name: str, data: Path) -> None:
    source = bundled(name)

    granted, verdicts = anyio.run(try_all, data, source, read_cases(source.file.parent / CASES))

    assert granted == source.requested
    assert len(verdicts) > 5
    assert not [one for one in verdicts if one.problem]
    assert all(one.fuel > 0 and one.wall_ms > 0 for one in verdicts)


def test_a_case_that_comes_out_otherwise_says_how(data: Path) -> None:
    cases = [
        a_case(expect="x"),
        a_case(expect_contains="1971"),
        a_case(expect_error="no"),
        a_case(call={**CALL, "arguments": {"utc_offset_hours": 99}}, expect="x"),
        a_case(call={**CALL, "arguments": {"utc_offset_hours": 99}}, expect_error="no clock"),
        a_case(call={"export": "parse-incoming", "input": {}}, expect="x"),
        a_case(expect_contains="1970-01-01"),
    ]

    _, verdicts = anyio.run(try_all, data, bundled("time"), cases)

    problems = ["\n".join(one.problem) for one in verdicts]
    assert problems[0].startswith('--- expected\n+++ got\n@@ -1 +1,6 @@\n-"x"\n+{')
    assert problems[1].startswith("expected something with '1971'\ngot '{")
    assert problems[2].startswith("expected an error with 'no', got: {")
    assert problems[3].startswith("it refused: ")
    assert "-14 and 14" in problems[3]
    assert problems[4].startswith("expected an error with 'no clock'\ngot the error ")
    assert problems[5].startswith("it gave no answer (invalid): ")
    assert problems[6] == ""


@pytest.mark.parametrize("clock_ms", [-1, 10**18])
def test_a_moment_that_no_clock_shows_is_refused_as_it_is_read(
    clock_ms: int, tmp_path: Path
) -> None:
    file = tmp_path / "cases.json"
    case = {"name": "it", "call": CALL, "expect": 1, "clock_ms": clock_ms}
    file.write_text(json.dumps({"cases": [case]}))

    with pytest.raises(BadPlugin, match=r"cases.0.clock_ms: Input should be"):
        read_cases(file)


def test_a_namespace_that_nobody_names_is_asked_for(data: Path) -> None:
    source = replace(bundled("notes"), about=None)

    with pytest.raises(ExceptionGroup) as caught:
        anyio.run(try_all, data, source, [a_case(expect=1)])

    asked = r"which needs store:NAME: name it in plugin.toml or in a case"
    assert caught.group_contains(BadPlugin, match=asked)


def test_only_recorded_requests_to_granted_hosts_are_answered(data: Path) -> None:
    url = "https://example.com/a"
    http = [{"method": "GET", "url": url, "headers": {"Content-Type": "text/plain"}, "body": "hi"}]

    def asking(url: str, **fields: Any) -> Case:
        return a_case(call={"tool": "fetch", "arguments": {"url": url}}, http=http, **fields)

    cases = [
        asking(url, expect_contains='"hi"'),
        asking(f"{url}b", expect_error="the case has no answer to GET https://example.com/ab"),
        asking("https://example.org/", expect_error="not allowed to reach https://example.org"),
    ]

    granted, verdicts = anyio.run(try_all, data, bundled("fetch"), cases)

    assert [str(one) for one in granted] == ["http:example.com"]
    assert [one.problem for one in verdicts] == [(), (), ()]


def test_a_bare_file_gets_what_it_imports_and_its_cases_speak_of(
    data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "spy.wasm"
    said = {"name": "spy", "tools": [{"name": "spy"}]}
    file.write_bytes(guest(json.dumps(said), CLOCK + STORE))
    cases = [
        a_case(call={"tool": "spy"}, expect_contains='"tool":"spy"', store={"box": {"k": "v"}}),
        a_case(call={"tool": "spy", "config": {"a": 1}}, expect_contains='"config":{"a":1}'),
    ]

    granted, verdicts = anyio.run(try_all, data, find_source(str(file)), cases)

    assert [str(one) for one in granted] == ["host_function:clock", "store:box"]
    assert [one.problem for one in verdicts] == [(), ()]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Invalid JSON"),
        ('{"cases": []}', "cases: List should have at least 1 item"),
        ('{"cases": [{"name": "a", "call": {}}]}', "give one of expect"),
        ('{"cases": [{"name": "a", "call": {}, "expect": 1, "expct": 2}]}', "cases.0.expct: Extra"),
        (
            '{"cases": [{"name": "a", "call": {}, "expect": 1, "expect_error": ""}]}',
            "give one of expect",
        ),
    ],
)
def test_cases_that_are_none_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "cases.json"
    file.write_text(text)

    with pytest.raises(BadPlugin) as caught:
        read_cases(file)

    assert problem in str(caught.value)


def test_missing_cases_say_how_to_name_them(tmp_path: Path) -> None:
    with pytest.raises(BadPlugin, match="name the recorded cases with --case"):
        read_cases(tmp_path / "cases.json")
