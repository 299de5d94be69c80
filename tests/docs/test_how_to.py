"""What the how-to pages tell an operator to type and to write is there."""

import re
from pathlib import Path

import pytest

from gateway.cli.configuration import known_names
from gateway.cli.main import exogate
from gateway.config.load import load
from tests.fakes.client import http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Reply, scripted_server
from tools.publish_cli import commands

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*(DOCS / "how-to").rglob("*.md"), *(DOCS / "reference").glob("*.md")])
(REQUEST,) = re.findall(
    r"-d '(.*)'", (DOCS / "reference" / "protocol.md").read_text(encoding="utf-8")
)
VERBS = {name for name, _ in commands(exogate, "exogate")}
# `exogate` with the words behind it; what is given to a command is in capitals, quotes or brackets.
_CALL = re.compile(r"(?:^|[`$] ?)(exogate(?: [a-z][a-z-]*)+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_command_of_a_page_exists(page: Path) -> None:
    for call in _CALL.findall(page.read_text(encoding="utf-8")):
        words = call.split()
        calls = {" ".join(words[:length]) for length in range(2, 4)}
        groups = {name.rpartition(" ")[0] for name in VERBS}
        assert calls & VERBS or call in groups, call


def test_the_configuration_of_the_page_about_deploying_loads(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "deploy.md").read_text(encoding="utf-8")
    example, in_a_container = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    secret = tmp_path / ".config" / "exogate" / "secrets" / "gateway_token"
    secret.parent.mkdir(parents=True)
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o600)
    file = tmp_path / "config.toml"
    file.write_text(example, encoding="utf-8")

    config = load(file, environment={}, home=tmp_path, cwd=tmp_path, known=known_names())

    assert config.gateway.trusted_proxies == ("127.0.0.1/32",)
    assert config.notices == ()
    file.write_text(in_a_container, encoding="utf-8")
    config = load(file, environment={}, home=tmp_path, cwd=tmp_path, known=known_names())
    assert config.gateway.bind == "0.0.0.0"


def test_the_rule_of_the_page_about_events_loads(tmp_path: Path) -> None:
    page = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "config.toml"
    file.write_text(example, encoding="utf-8")

    config = load(file, environment={}, home=tmp_path, cwd=tmp_path, known=known_names())

    assert config.rules[-1].id == "tell-me"


def test_the_first_example_of_the_page_about_the_configuration_loads(tmp_path: Path) -> None:
    page = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    example = page.split("```toml\n", 1)[1].split("```", 1)[0]
    file = tmp_path / "config.toml"
    file.write_text(example, encoding="utf-8")

    config = load(file, environment={}, home=tmp_path, cwd=tmp_path, known=known_names())

    assert config.budgets.daily.tokens == 200_000


def test_the_token_of_the_page_about_tokens_loads(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "tokens.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    secret = tmp_path / ".config" / "exogate" / "secrets" / "desk_token"
    secret.parent.mkdir(parents=True)
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o600)
    file = tmp_path / "config.toml"
    file.write_text(example, encoding="utf-8")

    (token,) = load(file, environment={}, home=tmp_path, cwd=tmp_path, known=known_names()).tokens

    assert token.budget is not None
    assert token.budget.monthly.tokens == 300_000


async def test_the_request_of_the_page_about_the_protocol_is_answered(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("noon")]) as model,
        running(Setup(model.url), tmp_path) as site,
    ):
        answer = await http(
            site.url + "/api/chat",
            method="POST",
            headers={"Content-Type": "application/json"},
            body=REQUEST.encode(),
        )

    assert (answer.status, answer.json["response"]) == (200, "noon")
