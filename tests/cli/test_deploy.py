"""`exogate init` writes a folder that a gateway starts from, and keeps existing files. The output of `exogate service
print` is accepted by the programs that it is for, and a gateway reports to its service manager."""

import json
import plistlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import Shell, end
from tests.fakes.gateway import spawn


# --- init ----------------------------------------------------------------------------------------
def test_the_folder_is_valid_and_a_gateway_starts_from_it(alone: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "new"

    made = alone("--json", "init", str(folder))
    validated = alone("--config", str(folder / "config.toml"), "config", "validate")
    gateway = spawn(folder / "config.toml")

    assert made.code == 0
    assert [Path(one).name for one in made.json["written"]] == [
        "config.toml",
        "main.md",
        "schema.json",
    ]
    assert (validated.code, validated.err) == (0, "")
    assert anyio.run(gateway.ready)
    end(gateway)


def test_the_configuration_is_short_and_names_its_schema(alone: Shell, tmp_path: Path) -> None:
    alone("init", str(tmp_path / "new"))

    text = (tmp_path / "new" / "config.toml").read_text(encoding="utf-8")
    schema = text.splitlines()[0].removeprefix("#:schema ")

    assert len(text.splitlines()) <= 40
    assert json.loads((tmp_path / "new" / schema).read_text(encoding="utf-8"))["properties"]


def test_what_is_there_is_named_and_stays(alone: Shell, tmp_path: Path) -> None:
    mine = tmp_path / "new" / "config.toml"
    mine.parent.mkdir()
    mine.write_text("# mine\n", encoding="utf-8")

    ran = alone("init", str(mine.parent))

    assert ran.code == 0
    assert f"{mine} exists and was not changed" in ran.out
    assert mine.read_text(encoding="utf-8") == "# mine\n"
    assert (mine.parent / "souls" / "main.md").exists()


def test_a_folder_that_cannot_be_made_is_said_in_a_sentence(alone: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    ran = alone("init", str(tmp_path / "file" / "below"))

    assert ran.code == 1
    assert "cannot be written: Not a directory" in ran.err


# --- service print -------------------------------------------------------------------------------
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def printed(shell: Shell, kind: str) -> str:
    ran = shell("service", "print", f"--{kind}")
    assert ran.code == 0, ran.err
    assert not re.search(r"@[A-Z_]+@", ran.out)
    return ran.out


@needs_systemd
def test_systemd_takes_the_unit_and_finds_it_confined(alone: Shell, tmp_path: Path) -> None:
    unit = tmp_path / "exogate.service"
    unit.write_text(printed(alone, "systemd"), encoding="utf-8")

    def analyze(*words: str) -> subprocess.CompletedProcess[str]:
        ran = [str(ANALYZE), *words, str(unit)]
        return subprocess.run(ran, capture_output=True, text=True, timeout=60)

    verified = analyze("verify")
    security = analyze("security", "--offline=true", "--no-pager")

    assert (verified.returncode, verified.stderr) == (0, "")
    level = re.search(r"exposure level for exogate.service: ([\d.]+) (\w+)", security.stdout)
    assert level is not None
    assert float(level[1]) < 5
    assert level[2] == "OK"


def test_the_unit_has_what_the_configuration_says(alone: Shell) -> None:
    text = alone.config.read_text(encoding="utf-8")
    gateway = '[gateway]\ndrain_s = 90\ntoken = "${file:gateway_token}"'
    secrets = alone.config.parent / ".config/exogate/secrets"
    secrets.mkdir(parents=True)
    (secrets / "gateway_token").write_text("a-token-of-the-test", encoding="utf-8")
    (secrets / "gateway_token").chmod(0o600)
    alone.config.write_text(text.replace("[gateway]", gateway), encoding="utf-8")

    unit = printed(alone, "systemd")

    assert "Type=notify\n" in unit
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in unit
    assert "TimeoutStopSec=105\n" in unit
    assert "LoadCredential=gateway_token:/etc/exogate/secrets/gateway_token\n" in unit
    assert "MemoryDenyWriteExecute=" not in unit
    assert "a-token-of-the-test" not in unit


def test_an_interpreter_that_the_unit_hides_is_named(alone: Shell) -> None:
    ran = alone("service", "print", "--systemd")

    interpreter = Path(sys.executable).resolve()
    is_hidden = interpreter.parts[1] in {"home", "root"}
    assert (f"the unit cannot see {interpreter} (ProtectHome=yes)" in ran.err) == is_hidden


def test_launchd_can_read_the_agent(alone: Shell) -> None:
    agent = plistlib.loads(printed(alone, "launchd").encode())

    assert agent["ProgramArguments"][-1] == "run"
    assert str(alone.config) in agent["ProgramArguments"]
    assert agent["ExitTimeOut"] == 35


def test_the_image_runs_as_nobody_and_the_container_writes_nowhere_else(alone: Shell) -> None:
    image, compose = printed(alone, "docker"), printed(alone, "compose")

    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", image, re.MULTILINE)
    assert 'ENTRYPOINT ["exogate"]' in image
    assert "EXOGATE_CONFIG=/etc/exogate/config.toml" in image
    assert "HOME=/var/lib/exogate" in image
    assert "HEALTHCHECK" in image
    assert 'VOLUME ["/var/lib/exogate"]' in image
    for line in ("read_only: true", "- ALL", "- no-new-privileges:true", '- "127.0.0.1:7200:7200"'):
        assert line in compose
    assert "stop_grace_period: 35s" in compose


def test_every_command_in_the_container_finds_the_data_where_it_always_was(
    alone: Shell, tmp_path: Path
) -> None:
    lines = printed(alone, "docker").replace("\\\n", "")
    (written,) = re.findall(r"^RUN (printf .* > /usr/local/bin/exogate) ", lines, re.MULTILINE)
    (path,) = re.findall(r"PATH=(\S+)", lines)
    script = tmp_path / "exogate"
    made = written.replace("/usr/local/bin/exogate", str(script))
    subprocess.run(["sh", "-c", made.replace("/opt/exogate/bin/exogate", "echo")], check=True)

    ran = subprocess.run(
        ["sh", script, "status", "a b"], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "--data-dir /var/lib/exogate status a b\n"
    assert path.index("/usr/local/bin") < path.index("/opt/exogate/bin")


@pytest.mark.parametrize("kinds", [(), ("--systemd", "--docker")])
def test_one_kind_has_to_be_named(alone: Shell, kinds: tuple[str, ...]) -> None:
    ran = alone("service", "print", *kinds)

    assert (ran.code, ran.out) == (2, "")
    assert "give one of --systemd, " in ran.err


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no such sockets here")
def test_a_gateway_tells_its_manager_when_it_is_ready_and_when_it_stops(alone: Shell) -> None:
    path = alone.config.parent / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(30)
        gateway = spawn(alone.config, more={"NOTIFY_SOCKET": str(path)})
        assert anyio.run(gateway.ready)
        ready = manager.recv(4096).decode()
        gateway.tell(signal.SIGTERM)
        stopping = manager.recv(4096).decode()
        code = gateway.process.wait(20)
        assert gateway.process.stdout is not None
        gateway.process.stdout.close()

    assert ready.startswith("READY=1\nSTATUS=serving at http://127.0.0.1:")
    assert stopping.startswith("STOPPING=1\n")
    assert code == 0
