"""Addresses that may be given a key, and definitions that never show one."""

import pytest

from gateway.domain.ids import Secret
from gateway.domain.model import ProviderDef, base_url_problem


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/v1",
        "https://api.example.com:8443",
        "http://127.0.0.1:11434/v1",
        "http://127.9.9.9/v1",
        "http://localhost:8080/v1",
        "http://[::1]:8080/v1",
    ],
)
def test_https_and_this_machine_are_fine(url: str) -> None:
    assert base_url_problem(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v1",
        "http://127.0.0.1.example.com/v1",
        "http://localhost.example.com",
        "http://10.0.0.1/v1",
        "http://0.0.0.0/v1",
        "ftp://api.example.com",
        "api.example.com/v1",
        "https://",
        "",
        "https://user:pass@api.example.com",
        "https://api.example.com/v1?key=x",
        "https://api.example.com/v1#x",
        "https://api.example.com:notaport/v1",
        "https://[::1",
    ],
)
def test_anything_else_is_refused_with_a_sentence(url: str) -> None:
    problem = base_url_problem(url)

    assert problem
    assert problem.startswith(("is ", "must "))


@pytest.mark.requirement("S-003-AgentDef-08")
def test_a_definition_shows_neither_its_key_nor_its_headers() -> None:
    definition = ProviderDef(
        "x", "openai", "https://x.example", Secret("top-secret"), {"x-key": "also-secret"}
    )

    assert "secret" not in repr(definition)
    assert "***" in repr(definition)
