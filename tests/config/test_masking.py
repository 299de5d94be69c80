"""Secrets are struck out wherever they turn up."""

import tomllib

import pytest

from gateway.config.document import without_secrets
from gateway.config.problems import KeyPath
from gateway.config.secrets import fit_line, is_sensitive, looks_secret, strike
from tests.config.arena import Arena

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "name",
    ["token", "api_key", "apiKey", "API-KEY", "bot_token", "client_secret", "password", "key"],
)
def test_a_name_that_looks_like_a_secret_is_one(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["tokens", "max_tokens", "token_budget", "keyboard", "port"])
def test_a_name_that_only_sounds_so_is_none(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("providers", "x", "headers", "X-Team"), True),
        (("gateway", "token"), True),
        (("gateway", "token", "nested"), True),
        (("tokens", 0, "name"), False),
        (("plugins", 0, "secrets", "x"), True),
        (("plugins", 0, "secrets", "hosts"), True),
        (("plugins", 0, "secrets", "x", "value"), True),
        (("plugins", 0, "secrets", "x", "hosts", 1), False),
        (("plugins", "secrets", "secrets", "x", "hosts"), True),
    ],
)
def test_a_path_is_as_sensitive_as_its_parts(path: KeyPath, expected: bool) -> None:
    assert is_sensitive(path) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"gateway.token = ['{SECRET}']", "gateway.token = [***]"),
        (f"gateway = {{ token = '{SECRET}', prot = 1 }}", "gateway = { token = ***, prot = 1 }"),
        (f"gateway = {{ prot = 1, token = '{SECRET}' }}", "gateway = { prot = 1, token = *** }"),
        (f"[gateway]\ntokn = '{SECRET}'", "tokn = ***"),
        (f"[gateway]\nprot = {{ a = '{SECRET}' }}", "prot = { a = *** }"),
        (f"[gateway]\npassword = '{SECRET}' # was {SECRET}", "password = ***"),
        (f"gateway.prot = 7 # not '{SECRET[:4]}'", f"gateway.prot = 7 # not '{SECRET[:4]}'"),
        (f"[providers.openai]\nheaders = {{ 'a b' = '{SECRET}' }}", "headers = { 'a b' = *** }"),
        (f'[providers.openai.headers]\n"a b" = "{SECRET}"', '"a b" = ***'),
        (
            f"[gateway]\nbind = '{SECRET} '\n[providers.openai]\napi_key = '{SECRET}'",
            "bind = '*** '",
        ),
        ("[agent]\ntolls = ['echo']", "tolls = ['echo']"),
        (f"[agent]\nthings = ['{SECRET}']", "things = [***]"),
        (f"[gateway]\ntokn = ['{SECRET}']", "tokn = [***]"),
        (f"[gateway]\ncodes = ['{SECRET}']", "codes = [***]"),
        (f"[agent]\nargv = ['{SECRET}']", "argv = [***]"),
        (f"[mcp.servers.x]\ncommand = 'c'\nenvs = ['DB={SECRET}']", "envs = [***]"),
        ("[agent]\nprovider = 'sk-ant-0123456789'", "provider = '***'"),
        ("gateway.token = '${env:NOPE}' # was correct-horse", "gateway.token = ***"),
        (
            f"plugins = [{{ prot = 1, secrets.k = '{SECRET}' }}]",
            "plugins = [{ prot = 1, secrets.k = *** }]",
        ),
    ],
)
def test_a_line_is_shown_without_its_secret(arena: Arena, text: str, line: str) -> None:
    refusal = arena.refusal(text)

    assert refusal.problems[0].text == line
    assert SECRET not in refusal.render()
    assert "0123456789" not in refusal.render()
    assert "correct-horse" not in refusal.render()


def test_the_caret_stays_with_its_place_behind_a_mask(arena: Arena) -> None:
    (problem,) = arena.problems(f"gateway = {{ token = '{SECRET}', prot = 1 }}")

    assert problem.column == 40
    assert problem.text[problem.caret :] == "prot = 1 }"


def test_nothing_that_is_loaded_shows_a_secret(arena: Arena) -> None:
    config = arena.load(
        f"[gateway]\ntoken = '{SECRET}'\n[[tokens]]\nname = 'a'\ntoken = '{SECRET}-2'\n"
        f"[agent]\nprovider = 'mine'\nmodel = 'm'\n[providers.mine]\nwire = 'openai'\n"
        f"base_url = 'https://a.example'\napi_key = '{SECRET}-3'\n"
        f"headers = {{ Authorization = '{SECRET}-4' }}"
    )

    assert SECRET not in repr(config)
    assert SECRET not in str(config.notices)


def test_a_line_that_begins_inside_a_secret_is_not_shown(arena: Arena) -> None:
    (problem,) = arena.problems(f'gateway = {{ token = """\n{SECRET}""", prot = 1 }}')

    assert (problem.line, problem.text) == (2, "")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("base_url = 'https://me:hunter2@a.example/v1'", "base_url = 'https://***a.example/v1'"),
        ("base_url = 'https://a.example/v1?key=hunter2'", "base_url = 'https://a.example/v1?***'"),
        ("base_url = 'https://a.example/v1'", "base_url = 'https://a.example/v1'"),
    ],
)
def test_an_address_is_shown_without_its_user_and_query(line: str, shown: str) -> None:
    assert strike(line) == shown


def test_a_line_of_a_file_with_windows_line_ends_is_shown_without_them() -> None:
    assert fit_line("foo", "=1\r") == ("foo=1", 3)


WITH_SECRETS = """# api_key = "s3cret-0"
[gateway]
token = "s3cret-1"  # was s3cret-9
port = 7200 # the usual

[providers.x]
api_key = "${env:X}"
base_url = "https://s3cret-2@host/v1?key=s3cret-3"
headers = { Authorization = "Bearer s3cret-4", "X-A" = "Bearer ${env:Y}" }

[[tokens]]
name = "a"
token = '''s3cret-5
#x'''

[[plugins]]
name = "p"
secrets = { K = { value = "s3cret-6", hosts = ["h.com"] }, J = "s3cret-7" }
config = { password = 1234567, list = ["x#y", { api_key = "s3cret-8" }] } # all

[mcp.servers.s]
args = ["--token", "s3cret-10", "--verbose"]
env = { A = "s3cret-11" }
"""


def test_a_copy_of_a_file_says_where_its_secrets_were_and_none_of_them() -> None:
    text = without_secrets(WITH_SECRETS)

    said = tomllib.loads(text)
    assert "s3cret" not in text
    assert "1234567" not in text
    assert said["gateway"] == {"token": "${file:gateway.token}", "port": 7200}
    assert said["providers"]["x"]["api_key"] == "${env:X}"
    assert said["providers"]["x"]["headers"]["X-A"] == "Bearer ${env:Y}"
    assert said["plugins"][0]["secrets"]["K"]["hosts"] == ["h.com"]
    assert said["mcp"]["servers"]["s"]["args"] == ["--token", "***", "--verbose"]
    assert "# the usual" in text


@pytest.mark.parametrize(
    "text", ["", "# only a comment\r\n", "a = 1\r\nb = '''x\r\n#y'''\r\n", "\ufeffport = 1 # one\n"]
)
def test_a_file_without_secrets_is_copied_letter_for_letter(text: str) -> None:
    assert without_secrets(text) == text
