"""Whatever is in the file: an answer with a place, never a traceback, never a secret."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.document import LARGEST
from gateway.config.problems import ConfigInvalid
from tests.config.arena import Arena
from tests.forms import examples, is_long

ROOT = Path(__file__).parents[2]
CORPUS = sorted((ROOT / "tests" / "hostile" / "toml").glob("*.toml"))
EXAMPLE = (ROOT / "config.example.toml").read_text()
SECRET = "hunter2"

MANY = 10_000 if is_long() else 2_000
LONG = 1_000_000 if is_long() else 100_000
BIG: dict[str, Callable[[], bytes]] = {
    "a long line": lambda: b'[agent]\nsystem_prompt = "' + b"a" * LONG + b'"\nx = 1',
    "a long broken line": lambda: b"a = " + b"[" * 50 + b"1," * LONG,
    "many brackets": lambda: b"a = " + b"[" * 10_000 + b"]" * 10_000,
    "many braces": lambda: b"a = " + b"{a=" * 10_000 + b"1" + b"}" * 10_000,
    "many parts": lambda: b".".join([b"a"] * MANY) + b" = 1",
    "tables as deep": lambda: b"[agent." + b".".join([b"fallback"] * MANY) + b"]\nmodel='m'",
    "a million keys": lambda: b"".join(b"k%d=1\n" % number for number in range(1_000_000)),
    "many keys": lambda: b"".join(b"k%d=1\n" % number for number in range(MANY)),
    "many tables": lambda: b"".join(b"[t%d]\n" % number for number in range(MANY)),
    "many agents": lambda: b"[[agents]]\n" * MANY,
    "many plugins": lambda: b"".join(b"[[plugins]]\nname='p%d'\n" % n for n in range(MANY)),
    "many tokens": lambda: b"[[tokens]]\ntoken='abcd'\n" * MANY,
    "too large": lambda: b"#" * (LARGEST + 1),
    "a long number": lambda: b"[gateway]\nport = " + b"1" * LONG,
}


def assert_is_an_answer(refusal: ConfigInvalid) -> None:
    assert refusal.problems
    for problem in refusal.problems:
        assert problem.source == "config.toml"
        assert problem.line >= 1
        assert problem.column >= 1
        assert problem.message.strip()
        assert problem.fix.strip()
        assert 0 <= problem.caret <= len(problem.text)
        assert all(line.isprintable() for line in problem.render().split("\n"))


@pytest.mark.requirement("S-003-Config-08")
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_hostile_file_is_answered_with_a_place(arena: Arena, path: Path) -> None:
    refusal = arena.refusal(path.read_bytes())

    assert_is_an_answer(refusal)
    assert SECRET not in refusal.render()


@pytest.mark.parametrize("name", BIG)
def test_a_file_that_is_too_much_is_answered_with_a_place(arena: Arena, name: str) -> None:
    refusal = arena.refusal(BIG[name]())

    assert_is_an_answer(refusal)
    assert len(refusal.render()) < 100_000


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        (b"a = ", 1, 4),
        (b"[gateway]\nport = = 1", 2, 8),
        (b"[gateway]\r\nport = = 1", 2, 8),
        (b"\xef\xbb\xbfport = = 1", 1, 8),
        ('[gateway]\nbind = "öö" x'.encode(), 2, 13),
        (b"[gateway]\nbind = '\xff'", 2, 9),
        (b"[gateway]\nport = 1\n[gateway]\n", 3, 9),
        (b"port = 1_000x", 1, 13),
    ],
)
def test_what_is_not_toml_is_shown_where_the_parser_stopped(
    arena: Arena, text: bytes, line: int, column: int
) -> None:
    (problem,) = arena.problems(text)

    assert (problem.code, problem.line, problem.column) == ("CFG001", line, column)


@pytest.mark.parametrize(
    "text",
    [
        "[gateway]\ntoken = hunter2",
        "[gateway]\ntoken = 'hunter2",
        "[gateway]\ntoken = '''\nhunter2",
        'token = """\nhunter2\n""" x',
        "gateway = { port = 1, token = 'hunter2' x }",
        "[providers.openai.headers]\nX-Other = hunter2",
        "[providers.openai]\nheaders = { X = hunter2 }",
        "api_key hunter2",
        "token: hunter2",
        "hunter2",
        "[[tokens]]\nname = 'a'\ntoken = ['x', hunter2]",
        "export MY_TOKEN=hunter2",
        "prompt = sk-hunter2",
        "token = 'a'\n= hunter2",
    ],
)
def test_a_secret_is_not_shown_even_where_nothing_can_be_parsed(arena: Arena, text: str) -> None:
    assert SECRET not in arena.refusal(text).render()


def test_a_harmless_line_is_shown(arena: Arena) -> None:
    (problem,) = arena.problems("[gateway]\nport = 72x00")

    assert problem.text == "port = 72x00"
    assert problem.text[problem.caret :] == "x00"


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
def test_what_is_no_file_is_refused(arena: Arena, kind: str) -> None:
    path = arena.cwd / "config.toml"
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")

    (problem,) = arena.problems()

    assert problem.code == "CFG012"


def test_a_path_with_a_nul_is_refused(arena: Arena) -> None:
    (problem,) = replace(arena, environment={"EXOGATE_CONFIG": "a\x00b"}).problems()

    assert problem.code == "CFG012"
    assert problem.render().isprintable() or "\n" in problem.render()


PIECES = st.sampled_from(
    [
        *"[]{}=.,'\"#\n\r\t\x00\\$",
        "[[",
        '"""',
        "${env:X}",
        "${",
        "true",
        "1e999",
        "0x",
        "1979-05-27",
        "fallback.",
        "\ufeff",
        "é",
        "\ud7ff",
        "9" * 30,
    ]
)


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(EXAMPLE)), st.integers(0, 12), PIECES | st.text(max_size=3)),
        min_size=1,
        max_size=4,
    ),
    is_uncommented=st.booleans(),
)
def test_no_damage_to_the_example_is_a_crash_or_an_empty_error(
    arena: Arena, edits: list[tuple[int, int, str]], is_uncommented: bool
) -> None:
    text = EXAMPLE
    if is_uncommented:
        text = text.replace("\n#", "\n")
    for at, length, piece in edits:
        text = text[:at] + piece + text[at + length :]

    try:
        arena.load(text.encode(errors="replace"))
    except ConfigInvalid as refusal:
        assert_is_an_answer(refusal)


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(at=st.integers(0, 500), length=st.integers(0, 6), piece=PIECES)
def test_no_damage_brings_a_secret_to_light(arena: Arena, at: int, length: int, piece: str) -> None:
    secret = "Correct-Horse-Battery"
    text = (
        f'[gateway]\ntoken = "{secret}"\nport = 7200\nprot = 1\n'
        f'[providers.mine]\nwire = "openai"\nbase_url = "https://a.example"\n'
        f'api_key = "{secret}"\nheaders = {{ Authorization = "{secret}" }}\n'
        f'[[tokens]]\nname = "a"\ntoken = "{secret}"\n'
        f'[[plugins]]\nname = "a"\npath = "bundled:echo"\ncapabilities = ["http:a.example"]\n'
        f'secrets = {{ one = "{secret}", two = {{ value = "{secret}", hosts = ["a.example"] }} }}\n'
    )
    text = text[:at] + piece + text[at + length :]

    try:
        said = repr(replace(arena.load(text.encode(errors="replace")), providers={}))
    except ConfigInvalid as refusal:
        said = refusal.render()

    assert "Horse" not in said
