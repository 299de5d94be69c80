"""Who may reach the gateway."""

from dataclasses import replace

import pytest

from gateway.config.kinds import origin
from tests.config.arena import Arena

TOKEN = "[[tokens]]\nname = 'phone'\ntoken = '${env:PHONE}'\n"


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.168.1.5", "gateway.example.com"])
def test_an_open_address_needs_a_token(arena: Arena, bind: str) -> None:
    (problem,) = arena.problems(f"[gateway]\nbind = '{bind}'")

    assert problem.code == "CFG013"
    assert "no token is set" in problem.message


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_none(arena: Arena, bind: str) -> None:
    assert arena.load(f"[gateway]\nbind = '{bind}'").gateway.bind == bind


@pytest.mark.parametrize("text", ["token = '${env:PHONE}'", TOKEN, ""])
def test_any_token_opens_the_door(arena: Arena, text: str) -> None:
    environment = {"PHONE": "secret-of-phone"} if text else {"EXOGATE_TOKEN": "other"}
    arena = replace(arena, environment=environment)

    assert arena.load(f"[gateway]\nbind = '0.0.0.0'\n{text}").gateway.bind == "0.0.0.0"


def test_the_environments_token_comes_first(arena: Arena) -> None:
    arena = replace(arena, environment={"EXOGATE_TOKEN": "from-environment"})

    config = arena.load("[gateway]\ntoken = '${env:UNSET}'")

    assert config.gateway.token is not None
    assert config.gateway.token.reveal() == "from-environment"


def test_a_token_of_the_environment_that_no_header_carries_is_named(arena: Arena) -> None:
    arena = replace(arena, environment={"EXOGATE_TOKEN": "a\nb"})

    assert [(p.source, p.code) for p in arena.problems()] == [("EXOGATE_TOKEN", "CFG006")]


def test_tokens_have_names_and_scopes(arena: Arena) -> None:
    arena = replace(arena, environment={"PHONE": "secret-of-phone"})

    (grant,) = arena.load(f"{TOKEN}scopes = ['read', 'agent:demo']").tokens

    assert (grant.name, grant.scopes) == ("phone", ("read", "agent:demo"))
    assert grant.token.reveal() == "secret-of-phone"


def test_a_token_may_chat_if_nothing_else_is_said(arena: Arena) -> None:
    (grant,) = replace(arena, environment={"PHONE": "secret-of-phone"}).load(TOKEN).tokens

    assert grant.scopes == ("chat",)


def test_a_token_that_is_the_operators_is_refused(arena: Arena) -> None:
    arena = replace(arena, environment={"PHONE": "same", "EXOGATE_TOKEN": "same"})

    (problem,) = arena.problems(TOKEN)

    assert (problem.code, problem.key) == ("CFG008", "tokens.0.token")


def test_a_literal_token_works_and_is_noted(arena: Arena) -> None:
    arena.write("[gateway]\ntoken = 'literal-token'").chmod(0o600)

    config = arena.load()

    assert config.gateway.token is not None
    assert config.gateway.token.reveal() == "literal-token"
    assert [(n.code, n.path) for n in config.notices] == [("literal-secret", "gateway.token")]


def test_a_readable_file_with_a_literal_secret_is_noted(arena: Arena) -> None:
    arena.write("[gateway]\ntoken = 'literal-token'").chmod(0o644)

    notices = arena.load().notices

    assert [n.code for n in notices] == ["literal-secret", "readable-file"]
    assert notices[1].fix.startswith("chmod 600 ")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("https://Console.Example.com", "https://console.example.com"),
        ("https://a.example:443", "https://a.example"),
        ("http://a.example:8080", "http://a.example:8080"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_an_origin_is_what_a_browser_sends(text: str, plain: str) -> None:
    assert origin(text) == plain


@pytest.mark.parametrize(
    "text",
    [
        "https://a.example/",
        "https://a.example/x",
        "https://*.example",
        "*",
        "null",
        "ftp://a.example",
        "https://u@a.example",
        "https://a.example:99999",
        "https://a.example\\n",
    ],
)
def test_what_no_browser_sends_is_refused(arena: Arena, text: str) -> None:
    (problem,) = arena.problems(f'[gateway]\nallowed_origins = ["{text}"]')

    assert (problem.code, problem.key) == ("CFG006", "gateway.allowed_origins.0")


@pytest.mark.parametrize("bind", ["", "300.1.1.1", "a b", "127.0.0.1:80", "-a"])
def test_what_is_no_address_is_refused(arena: Arena, bind: str) -> None:
    (problem,) = arena.problems(f"[gateway]\nbind = '{bind}'")

    assert (problem.code, problem.key) == ("CFG006", "gateway.bind")


def test_proxies_are_addresses_or_networks(arena: Arena) -> None:
    config = arena.load("[gateway]\ntrusted_proxies = ['10.0.0.5', '10.1.2.3/16', '::1']")

    assert config.gateway.trusted_proxies == ("10.0.0.5/32", "10.1.0.0/16", "::1/128")
    (problem,) = arena.problems("[gateway]\ntrusted_proxies = ['proxy.example']")
    assert problem.key == "gateway.trusted_proxies.0"
