"""The verbs and the options that all of them have."""

import subprocess
import sys
from importlib import import_module  # noqa: TID251  # as the table says

import click
import pytest

from gateway.cli.command import split_options
from gateway.cli.main import COMMANDS, exogate
from gateway.cli.verbs import ROWS
from tests.cli.conftest import Shell


@pytest.mark.parametrize(
    ("words", "in_order"),
    [
        ("version --json", "--json version"),
        ("session list --limit 3 --json -c x.toml", "--json -c x.toml session list --limit 3"),
        ("status --data-dir /d --config=c.toml", "--data-dir /d --config=c.toml status"),
        ("chat -m --json", "chat -m --json"),
        ("status -cx.toml", "-cx.toml status"),
        ("chat -- --json", "chat -- --json"),
        ("status -c", "status -c"),
        ("", ""),
    ],
)
def test_options_of_every_verb_may_stand_anywhere(words: str, in_order: str) -> None:
    front, rest = split_options(words.split())

    assert [*front, *rest] == in_order.split()


def test_json_after_the_verb_gives_json(alone: Shell) -> None:
    assert alone("version", "--json").json["version"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("vresion", "No such command 'vresion'; did you mean \"version\"?"),
        ("budget sett daily 5", "No such command 'sett'; did you mean \"set\"?"),
        ("budget set daily -5", 'Write a negative number after "--": -- -5'),
        ("budget set daily -- -5", '"-5" is not a number of tokens'),
    ],
)
def test_wrong_usage_is_told_what_would_be_right(alone: Shell, words: str, told: str) -> None:
    ran = alone(*words.split())

    assert ran.code == 2
    assert told in ran.err


def test_every_verb_is_listed_with_its_whole_help(alone: Shell) -> None:
    shown = alone("--help").out

    wide = max(map(len, COMMANDS))
    for name, one in COMMANDS.items():
        assert f"\n  {name:{wide}}  {one.help}\n" in shown


def imported_by(*commands: str) -> list[set[str]]:
    """The modules in a process that has run this command, and those before it."""
    code = f"""if True:
        import sys
        from gateway.cli.main import exogate
        for words in {[one.split() for one in commands]}:
            exogate(words, standalone_mode=False)
            print(*sys.modules, file=sys.stderr)
    """
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    return [set(line.split()) for line in ran.stderr.splitlines()]


def families(modules: set[str]) -> set[str]:
    named = {one.module for one in COMMANDS.values()}
    return {module for module in named if f"gateway.cli.{module}" in modules}


HEAVY = {
    "aiohttp",
    "anyio",
    "asyncio",
    "gateway.app",
    "pydantic",
    "sqlite3",
    "starlette",
    "websockets",
}


def test_help_imports_no_command_and_nothing_heavy() -> None:
    (imported,) = imported_by("--help")

    assert not families(imported)
    assert not imported & {*HEAVY, "uvicorn", "wasmtime"}
    assert len({name for name in imported if name.startswith("gateway.")}) < 15


def test_a_command_that_needs_no_server_imports_none() -> None:
    (imported,) = imported_by("tree show default")

    assert "uvicorn" not in imported


FAMILIES = {name: one for name, one in COMMANDS.items() if one.verbs is not None}


def test_help_of_a_family_imports_none_of_its_commands() -> None:
    imported = imported_by(*(f"{family} --help" for family in FAMILIES))

    for family, modules in zip(FAMILIES, imported, strict=True):
        assert not families(modules), family
        assert not modules & HEAVY, family


def listed(group: click.Group) -> list[tuple[str, click.Command]]:
    """The commands right below it, each with its name."""
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((name, command))
    return found


def test_every_verb_of_a_module_is_in_the_table_and_no_other() -> None:
    for family, one in FAMILIES.items():
        module = one.module
        group = getattr(import_module(f"gateway.cli.{module}"), family) if module else None
        assert set(one.verbs or ()) == (set(group.commands) if group else set()), family


def test_the_help_of_a_command_that_is_a_method_is_that_of_the_method() -> None:
    for name, (method, _) in ROWS.items():
        if name in COMMANDS:
            assert COMMANDS[name].help == method.help


def test_no_help_in_a_list_is_cut() -> None:
    for group in (exogate, *(one for _, one in listed(exogate) if isinstance(one, click.Group))):
        commands = listed(group)
        room = 80 - 2 - 6 - max(len(name) for name, _ in commands)  # as click counts it
        for name, command in commands:
            text = command.get_short_help_str(room)
            assert text.endswith("."), name
            assert not text.endswith("..."), name
