"""Every secret of a configuration is known to whoever has to keep it out of a text."""

from pathlib import Path

from gateway.cli.configuration import known_names
from gateway.config.load import load
from gateway.config.secrets import secrets_in
from gateway.domain.ids import Secret

FILE = """
[gateway]
token = "operator-0123456789"
[providers.fake]
wire = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "sk-0123456789"
headers = { Authorization = "Bearer header-0123456789" }
[agent]
provider = "fake"
model = "m"
[[tokens]]
name = "alice"
token = "alice-0123456789"
[mcp.servers.books]
command = "books"
env = { API_KEY = "env-0123456789", LEVEL = "plain-0123456789" }
[[plugins]]
name = "fetch"
path = "bundled:fetch"
capabilities = ["http:example.com"]
secrets = { key = { value = "plugin-0123456789", hosts = ["https://example.com"] } }
"""


def test_every_secret_of_a_configuration_is_found(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE, encoding="utf-8")
    config = load(path, environment={}, home=tmp_path, cwd=tmp_path, known=known_names())

    found = {*secrets_in(config)}

    names = ("operator", "sk", "header", "alice", "env", "plugin")
    assert found >= {f"{name}-0123456789" for name in names}


SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
CREDENTIALS = f"""-----BEGIN USER NKEY SEED-----
IMPORTANT: this token identity. is sensitive
{SEED}
------END USER NKEY SEED------
"""


def test_of_a_secret_of_many_words_the_plain_ones_are_none() -> None:
    assert {*secrets_in(Secret(CREDENTIALS))} == {CREDENTIALS, SEED}
    for scheme in ("Bearer", "basic", "Token"):
        assert {*secrets_in(Secret(f"{scheme} abc"))} == {f"{scheme} abc", "abc"}
