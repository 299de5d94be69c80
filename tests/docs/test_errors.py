"""Every error code is explained, and every command in an explanation is one. `python tools/publish_errors.py` writes
docs/reference/errors.md."""

import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

import gateway
from gateway.api.errors import FAILURES, INTERNAL, explanations, find_explanation
from gateway.cli import command
from gateway.cli.main import exogate
from gateway.config.problems import Code
from gateway.domain.errors import GatewayError
from gateway.domain.messages import ErrorType
from gateway.web import socket
from gateway.web.wire import frames
from tools.publish_errors import FILE, page

EXTRAS = ("gateway.mcp", "gateway.cluster", "gateway.store.surreal", "gateway.launcher")
_COMMAND = re.compile(r"`(exogate [^`]+)`")


def _subclasses(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _subclasses(one)


def codes() -> set[str]:
    """Of all that can be imported without an extra, and of the types of answers."""
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if not module.name.startswith(EXTRAS):
            pkgutil.resolve_name(module.name)
    kinds = [one for one in _subclasses(GatewayError) if one.__module__.startswith("gateway.")]
    words = {kind.code for kind in kinds}
    return words | {one.type for one in (*FAILURES.values(), INTERNAL)} | {*get_args(ErrorType)}


def test_every_word_of_an_error_is_explained() -> None:
    assert codes() - explanations().keys() == set()


def test_every_code_of_a_configuration_is_explained() -> None:
    assert {*map(str, Code)} - explanations().keys() == set()
    folder = Path(gateway.__file__).parent / "config"
    text = "".join(one.read_text(encoding="utf-8") for one in sorted(folder.glob("*.py")))
    noted = re.findall(r"\.note\(\s*\"([^\"]+)\"", text)
    assert set(noted) - explanations().keys() == set()


def test_every_number_is_explained() -> None:
    exits = {0, command.FAILED, command.USAGE, command.UNREACHABLE, command.BUSY}
    exits |= {command.NOT_ALLOWED, command.BAD_CONFIG}
    closes = {socket.UNAUTHORIZED, frames.LAGGING, frames.TOO_LARGE, frames.TOO_MANY, 4403, 1012}
    rpc = {one.rpc for one in (*FAILURES.values(), INTERNAL)}

    assert {*map(str, exits | closes | rpc)} - explanations().keys() == set()


@pytest.mark.parametrize("code", explanations())
def test_an_explanation_leads_only_to_what_there_is(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = explanations()[code]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()

    assert set(one.see) - explanations().keys() == set()
    for words in map(shlex.split, _COMMAND.findall(f"{one.about} {one.fix}")):
        parses(exogate, words[1:])


def parses(group: click.Command, words: list[str]) -> None:
    """Raises UsageError for what is no command."""
    context = group.make_context(group.name, list(words))
    while isinstance(context.command, click.Group):
        name, inner, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert inner is not None
        context = inner.make_context(name, rest, parent=context)


def test_the_page_is_published_as_it_is() -> None:
    assert FILE.read_text(encoding="utf-8") == page()
    assert page().count("### ") == len(explanations())


def test_a_code_is_found_however_it_is_written() -> None:
    assert find_explanation("cfg002") == find_explanation(" CFG002 ")
    assert find_explanation("nothing") is None
