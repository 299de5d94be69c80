"""What must not be paraphrased is found, in bounded time, whatever somebody pastes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.wording import files_and_symbols, identifiers, missing_from


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://a.example/x?y=1.", ["https://a.example/x?y=1"]),
        ("read result://r_06gv/2e960c8f on", ["result://r_06gv/2e960c8f"]),
        ("in /etc/nginx/nginx.conf and ~/notes/a.md", ["/etc/nginx/nginx.conf", "~/notes/a.md"]),
        ("src/app/main.py, Cargo.toml", ["src/app/main.py", "Cargo.toml"]),
        ("mail bob@x.example", ["bob@x.example"]),
        ("ticket #4711, order AB-1234-X", ["#4711", "AB-1234-X"]),
        ("$1,299.50 at 10:30 on 2026-03-01", ["$1,299.50", "10:30", "2026-03-01"]),
        ("at 192.168.1.10:8080", ["192.168.1.10:8080"]),
        ("call foo_bar() or `Some Thing`", ["foo_bar", "Some Thing"]),
        ("version 3.14.2, 12 eggs and 3 spoons", ["3.14.2"]),
        ("I like tea. You do not.", []),
    ],
)
def test_each_kind_is_found_and_plain_words_are_not(text: str, found: list[str]) -> None:
    assert identifiers(text) == found


@given(st.text())
def test_what_is_found_stands_in_the_text(text: str) -> None:
    assert all(name in text for name in identifiers(text))


@pytest.mark.parametrize("piece", ["a/", "a_", "1.", "a-1", "`", "a.", "/a", "a", "a@a.", "1,"])
def test_what_is_pasted_costs_no_time(piece: str) -> None:
    began = time.process_time()

    identifiers(piece * (100_000 // len(piece)))

    assert time.process_time() - began < 0.5


def test_what_is_spoken_of_later_comes_first_then_what_was_said_most() -> None:
    texts = ["port 8001, port 8002, `a_b`", "port 8002, port 8003", "port 8004"]

    assert missing_from("has 8003", texts, "again 8001", most=3) == ["8001", "8002", "8004"]


@pytest.mark.requirement("S-000-Context-12")
def test_files_and_symbols_are_told_apart() -> None:
    texts = ["`AuthService` in auth.py calls `jwt.encode()`", "see src/jwt.py and `auth.py`, 3.14"]

    assert files_and_symbols(texts) == (["auth.py", "src/jwt.py"], ["AuthService", "jwt.encode()"])
