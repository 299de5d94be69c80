"""Who may reach the gateway."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.config.access import authority, token_budgets
from gateway.config.sections import origin
from gateway.domain.budgets import NANO, Limit, TokenBudget
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
    environment = (
        {"PHONE": "secret-of-the-phone"} if text else {"EXOGATE_TOKEN": "another-long-one"}
    )
    arena = replace(arena, environment=environment)

    assert arena.load(f"[gateway]\nbind = '0.0.0.0'\n{text}").gateway.bind == "0.0.0.0"


BLANKS = ["", " ", "   "]


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("blank", BLANKS)
def test_a_blank_token_is_a_problem_wherever_it_comes_from(
    arena: Arena, blank: str, bind: str
) -> None:
    head = f"[gateway]\nbind = '{bind}'\n"
    of_file = arena.problems(f"{head}token = '{blank}'")
    of_environment = replace(arena, environment={"EXOGATE_TOKEN": blank}).problems(head)
    of_reference = replace(arena, environment={"PHONE": blank}).problems(f"{head}{TOKEN}")
    of_list = arena.problems(f"{head}[[tokens]]\nname = 'phone'\ntoken = '{blank}'")

    assert "gateway.token" in [problem.key for problem in of_file]
    assert [problem.source for problem in of_environment] == ["EXOGATE_TOKEN"]
    assert [problem.key for problem in of_reference] == ["tokens.0.token"]
    assert "tokens.0.token" in [problem.key for problem in of_list]


@pytest.mark.parametrize("blank", [*BLANKS, "\n", " \n", "\t\r\n"])
def test_a_blank_secret_file_is_a_problem(arena: Arena, blank: str) -> None:
    arena.secret("door", blank)

    (problem,) = arena.problems("[gateway]\ntoken = '${file:door}'")

    assert problem.key == "gateway.token"


@pytest.mark.parametrize(
    ("bind", "length", "codes"),
    [
        ("0.0.0.0", 15, ["CFG013"]),
        ("::", 15, ["CFG013"]),
        ("192.168.1.5", 1, ["CFG013"]),
        ("0.0.0.0", 16, []),
        ("127.0.0.1", 1, []),
        ("localhost", 15, []),
    ],
)
@pytest.mark.parametrize("by", ["file", "environment"])
def test_a_weak_token_of_the_operator_does_not_open_the_door_to_others(
    arena: Arena, bind: str, length: int, codes: list[str], by: str
) -> None:
    name = "EXOGATE_TOKEN" if by == "environment" else "DOOR"
    arena = replace(arena, environment={name: "x" * length})
    line = "token = '${env:DOOR}'" if by == "file" else ""

    text = f"[gateway]\nbind = '{bind}'\n{line}"
    if not codes:
        assert arena.load(text).gateway.token is not None
        return
    found = arena.problems(text)

    assert [problem.code for problem in found] == codes
    assert all("fewer than 16" in problem.message for problem in found)


def test_spaces_make_no_token_strong(arena: Arena) -> None:
    arena = replace(arena, environment={"DOOR": "short".ljust(40)})

    found = arena.problems("[gateway]\nbind = '0.0.0.0'\ntoken = '${env:DOOR}'")

    assert [problem.code for problem in found] == ["CFG013"]


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
    assert [(n.code, n.key) for n in config.notices] == [("literal-secret", "gateway.token")]


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


GRANT = "[[tokens]]\nname = 'phone'\ntoken = 'a-token-of-the-file'\n"
FIRST = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "expires"),
    [
        ("2027-01-01", FIRST),
        ("'2027-01-01'", FIRST),
        ("2027-01-01T00:00:00Z", FIRST),
        ("'2027-01-01T02:00:00+02:00'", FIRST),
        ("2027-01-01 00:00:00", FIRST),
    ],
)
def test_a_token_expires_at_a_date_or_a_time(arena: Arena, written: str, expires: datetime) -> None:
    (grant,) = arena.load(f"{GRANT}expires = {written}").tokens

    assert grant.expires == expires


@pytest.mark.parametrize(
    ("written", "budget"),
    [
        ("10_000", TokenBudget(daily=Limit(10_000))),
        ("{ monthly = 5, session = 0 }", TokenBudget(monthly=Limit(5), session=Limit(0))),
        ("{ daily = { tokens = 7, usd = 0.5 } }", TokenBudget(daily=Limit(7, NANO // 2))),
    ],
)
def test_a_token_has_a_budget_a_day_or_others(
    arena: Arena, written: str, budget: TokenBudget
) -> None:
    config = arena.load(f"{GRANT}budget = {written}")

    assert token_budgets(config) == {"phone": budget}
    assert "a-token-of-the-file" not in str(authority(config))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("expires = 'soon'", "expires"),
        ("expires = 30", "expires"),
        ("expires = 10:00:00", "expires"),
        ("budget = '100k'", "budget"),
        ("budget = -1", "budget"),
        ("budget = { weekly = 3 }", "budget.weekly"),
    ],
)
def test_a_limit_of_a_token_that_means_nothing_is_a_problem(
    arena: Arena, line: str, key: str
) -> None:
    (problem,) = arena.problems(GRANT + line)

    assert problem.key == f"tokens.0.{key}"
    assert problem.fix
