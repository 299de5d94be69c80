"""Every finding of `exogate doctor` has the command that mends it: it is run, and the finding is gone."""

import json
import os
import socket
import subprocess
from collections.abc import Callable

import pytest

from tests.cli.conftest import PLUGIN, Shell
from tests.fakes.commands import commands

REAL = '\n[providers.x]\nwire = "openai"\nbase_url = "https://x.example/v1"\napi_key = "${env:X}"\n'


def more(text: str) -> Callable[[Shell], None]:
    def change(shell: Shell) -> None:
        with shell.config.open("a", encoding="utf-8") as file:
            file.write(text)

    return change


def instead(old: str, new: str) -> Callable[[Shell], None]:
    def change(shell: Shell) -> None:
        text = shell.config.read_text(encoding="utf-8")
        assert old in text
        shell.config.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def open_to_others(shell: Shell) -> None:
    (shell.config.parent / "data").mkdir(mode=0o700)
    (shell.config.parent / "data").chmod(0o755)


def readable_with_a_secret(shell: Shell) -> None:
    instead("[gateway]", '[gateway]\ntoken = "a-token-that-stands-here"')(shell)
    shell.config.chmod(0o644)


def damaged(shell: Shell) -> None:
    (shell.config.parent / "data").mkdir(mode=0o700)
    (shell.config.parent / "data" / "store.db").write_bytes(b"this is no database" * 100)


def missing_soul(shell: Shell) -> None:
    instead('id = "demo"', 'id = "demo"\nsoul_path = "soul.md"')(shell)
    (shell.config.parent / "soul.md").write_bytes(b"\xff\xfe\xff")


def refused_rules(shell: Shell) -> None:
    text = shell.config.read_text(encoding="utf-8")
    shell.config.write_text(f'rules_dir = "rules"\n{text}', encoding="utf-8")
    (shell.config.parent / "rules").mkdir()
    (shell.config.parent / "rules" / "mine.toml").write_text("[[rules]]", encoding="utf-8")


FAULTS: dict[str, Callable[[Shell], None]] = {
    "CFG002": instead("[gateway]", "[gateway]\nprot = 7200"),
    "CFG003": instead("[gateway]", '[queue]\nmode = "folowup"\n\n[gateway]'),
    "CFG007": instead("[gateway]", "[limits]\nmax_iterations = 900\n\n[gateway]"),
    "CFG009": instead('agent_id = "second"', 'agent_id = "secnd"'),
    "CFG013": instead("[gateway]", '[gateway]\nbind = "0.0.0.0"'),
    "CFG014": instead('provider = "demo"\nmodel = "demo"', 'provider = "openai"'),
    "bindings.shadowed": more('[[bindings]]\nagent_id = "demo"\nchannel = "telegram"\n'),
    "unknown-channel": lambda shell: None,
    "unused-secret": more(REAL.replace("${env:X}", "${file:missing}")),
    "literal-secret": instead("[gateway]", '[gateway]\ntoken = "a-token-that-stands-here"'),
    "readable-file": readable_with_a_secret,
    "writable-file": lambda shell: shell.config.chmod(0o602),
    "data.mode": open_to_others,
    "data.unusable": instead('data_dir = "', 'data_dir = "/dev/null/'),
    "store.damaged": damaged,
    "provider.key": more('[providers.x]\nwire = "openai"\nbase_url = "https://x.example/v1"\n'),
    "soul.unreadable": missing_soul,
    "tree.refused": instead('id = "demo"', 'id = "demo"\ntree = "mine.bt"'),
    "rule.refused": refused_rules,
    "plugin.refused": more(PLUGIN.replace('"host_function:clock"', "")),
    "budget.unlimited": instead('provider = "demo"', 'provider = "x"'),
}


def found(shell: Shell) -> dict[str, dict[str, str]]:
    ran = shell("--json", "doctor", env={"X": "sk-of-the-test"})
    return {one["id"]: one for one in json.loads(ran.out)["findings"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_command_of_a_finding_mends_it(alone: Shell, fault: str) -> None:
    if fault == "budget.unlimited":
        more(REAL)(alone)
    if fault == "tree.refused":
        (alone.config.parent / "mine.bt").write_text("(nonsense", encoding="utf-8")
    FAULTS[fault](alone)
    before = found(alone)

    assert fault in before
    run(alone, before[fault]["fix"])

    assert fault not in found(alone)


def test_a_port_that_is_taken_gets_one_that_is_free(alone: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        instead("port = 0", f"port = {port}")(alone)
        before = found(alone)

        run(alone, before["network.port"]["fix"])

        assert "network.port" not in found(alone)


def run(shell: Shell, command: str) -> None:
    """As an operator types it, with something to paste where a secret is asked for."""
    ran = subprocess.run(
        command,
        shell=True,
        env=as_typed(shell),
        input="sk-pasted-by-somebody\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, (command, ran.stdout, ran.stderr)


def as_typed(shell: Shell) -> dict[str, str]:
    """The variables of an operator."""
    home, path = str(shell.config.parent), f"{commands().programs}:{os.defpath}"
    return {"HOME": home, "PATH": path, "X": "sk-of-the-test"}


def test_fix_mends_modes_and_nothing_else(alone: Shell) -> None:
    readable_with_a_secret(alone)
    open_to_others(alone)
    text = alone.config.read_text(encoding="utf-8")

    ran = alone("--json", "doctor", "--fix")

    ids = {one["id"] for one in ran.json["findings"]}
    assert ids.isdisjoint({"readable-file", "data.mode"})
    assert "literal-secret" in ids
    assert alone.config.read_text(encoding="utf-8") == text
    assert alone.config.stat().st_mode & 0o777 == 0o600


def test_a_bad_configuration_is_among_the_findings(alone: Shell) -> None:
    alone.config.write_text("[gateway", encoding="utf-8")

    ran = alone("--json", "doctor")

    assert ran.code == 78
    (one,) = ran.json["findings"]
    assert one["id"] == "CFG001"
    assert one["fix"].startswith("${EDITOR:-vi} +1 ")
