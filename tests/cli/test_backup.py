"""`exogate backup`: made beside a gateway or without one, checked, put back; and killed at every step."""

import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.domain.errors import StoreRefused
from gateway.store.opening import RESTORING, open_store
from tests.cli.conftest import Shell, written
from tests.fakes.clock import FakeClock
from tests.fakes.commands import commands
from tests.fakes.gateway import START_S, command
from tests.fakes.lived import live, told
from tests.forms import is_long

strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
CANARY = "canary-{}-5f1b"
SECRETS = """
[gateway]
port = 0
data_dir = "{folder}/data"
token = "canary-1-5f1b"  # canary-2-5f1b

# api_key = "canary-3-5f1b"
[providers.own]
wire = "openai"
base_url = "https://own.example"
api_key = "${{file:own_key}}"
headers = {{ X-Team = "canary-4-5f1b" }}

[agent]
id = "demo"
provider = "demo"
model = "demo"
soul_path = "souls/poet.md"
prompt_template = "{folder}/elsewhere/template.md"

[[plugins]]
name = "time"
path = "bundled:time"
capabilities = ["host_function:clock"]
"""


async def filled(data_dir: Path) -> None:
    async with open_store("embedded", data_dir, clock=FakeClock()) as stores:
        await live(stores)


async def values(data_dir: Path) -> object:
    async with open_store("embedded", data_dir, clock=FakeClock()) as stores:
        return (await told(stores))["values"]


def offline(folder: Path) -> Shell:
    """A store that much has happened in, and no gateway."""
    shell = Shell(written(folder, with_plugin=False))
    anyio.run(filled, folder / "data")
    return shell


def test_a_running_gateway_makes_one_and_says_so_in_the_audit(shell: Shell, tmp_path: Path) -> None:
    shell("chat", "-m", "My dog is called Luna")
    made = shell("--json", "backup", "create", str(tmp_path / "a.zip")).json
    checked = shell("--json", "backup", "verify", str(tmp_path / "a.zip")).json
    again = shell("backup", "create", str(tmp_path / "a.zip"))
    long = shell("backup", "create", str(tmp_path / ("x" * 300)))
    tail = shell("--json", "audit", "tail").json["entries"]

    assert made["accepted"] >= 1
    assert (tmp_path / "a.zip").read_bytes()[-32:].hex() == made["sha256"] == checked["sha256"]
    assert (again.code, "exists" in again.err) == (1, True)
    assert (long.code, "File name too long" in long.err) == (1, True)
    assert [one["kind"] for one in tail if one["detail"].get("file") == made["file"]] == [
        "backup.created"
    ]
    assert checked["manifest"]["store"]["counts"]["session"] >= 1


def test_without_a_name_it_lies_in_the_data_directory(shell: Shell) -> None:
    made = shell("backup", "create")

    (file,) = re.findall(r"^(\S+/data/backups/\d{4}-\S+\.zip) ", made.out)
    assert shell("backup", "verify", file).code == 0


def test_a_gateway_that_runs_is_not_written_over(shell: Shell, tmp_path: Path) -> None:
    shell("backup", "create", str(tmp_path / "a.zip"))

    refused = shell("backup", "restore", str(tmp_path / "a.zip"), "--force")

    assert refused.code == 75
    assert "is in use by process" in refused.err
    assert shell("status").code == 0


@pytest.fixture(params=[False, True], ids=["shown", "secret"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    """With and without secrets."""
    config = tmp_path / "etc" / "config.toml"
    secret = config.parent / ".config" / "exogate" / "secrets" / "own_key"
    for file, text in (
        (config, SECRETS.format(folder=tmp_path)),
        (config.parent / "souls" / "poet.md", "You are a poet."),
        (tmp_path / "elsewhere" / "template.md", "{soul}"),
        (secret, "canary-5-5f1b"),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
    anyio.run(filled, tmp_path / "data")
    (tmp_path / "data" / "operator.key").write_text("canary-6-5f1b")
    more = ["--with-secrets"] if request.param else []
    made = Shell(config)("backup", "create", str(tmp_path / "a.zip"), *more)
    assert made.code == 0, made.err
    return tmp_path / "a.zip", request.param


def test_secrets_are_in_it_only_when_asked_for(archive: tuple[Path, bool]) -> None:
    file, has_secrets = archive
    found = {
        number for number in range(1, 7) if CANARY.format(number).encode() in file.read_bytes()
    }

    assert found == ({1, 2, 3, 4, 5} if has_secrets else set())
    with zipfile.ZipFile(file) as inside:
        names = set(inside.namelist())
        text = inside.read("config/config.toml").decode()
    assert "config/souls/poet.md" in names
    assert ("secrets/own_key" in names) == has_secrets
    assert any(name.startswith("outside/") and name.endswith("/template.md") for name in names)
    assert ("${file:gateway.token}" in text) != has_secrets


def test_what_was_restored_says_which_secrets_are_missing(
    archive: tuple[Path, bool], tmp_path: Path
) -> None:
    file, has_secrets = archive
    done = Shell(tmp_path / "etc" / "config.toml")(
        "--data-dir", f"{tmp_path}/new", "backup", "restore", str(file)
    )
    restored = tmp_path / "new" / "restored"

    checked = Shell(restored / "config.toml")("config", "validate")

    assert "1 answers were being sent and are held" in done.out
    assert (restored / "souls" / "poet.md").read_text() == "You are a poet."
    assert [*restored.glob("outside/**/template.md")]
    if has_secrets:
        assert (restored / "secrets" / "own_key").stat().st_mode & 0o777 == 0o600
    else:
        assert "put the secret into" in checked.out
        assert "gateway.token" in checked.out


def test_a_secret_of_the_service_manager_is_in_it_when_asked_for(
    archive: tuple[Path, bool], tmp_path: Path
) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "own_key").write_text("of the manager")
    env = {"CREDENTIALS_DIRECTORY": str(tmp_path / "given")}
    words = ("backup", "create", str(tmp_path / "b.zip"), "--with-secrets")

    made = Shell(tmp_path / "etc" / "config.toml")(*words, env=env)

    assert "left out" not in made.err
    with zipfile.ZipFile(tmp_path / "b.zip") as inside:
        assert inside.read("secrets/own_key") == b"of the manager"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_makes_in_a_data_directory_belongs_to_its_owner(tmp_path: Path) -> None:
    shell, data, owner = offline(tmp_path), tmp_path / "data", 65_532
    os.chown(data, owner, owner)
    made = Path(shell("--json", "backup", "create").json["file"])
    owners = {made.stat().st_uid, made.parent.stat().st_uid}

    done = shell("backup", "restore", str(made.rename(tmp_path / "a.zip")), "--force")

    assert (done.code, owners) == (0, {owner})
    assert {one.stat().st_uid for one in (data, *data.rglob("*"))} == {owner}


def test_a_plugin_is_named_with_its_digest(archive: tuple[Path, bool]) -> None:
    with zipfile.ZipFile(archive[0]) as inside:
        (plugin,) = json.loads(inside.read("manifest.json"))["plugins"]

    assert plugin["name"] == "time"
    assert len(plugin["sha256"]) == 64


def test_what_cannot_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    shell = Shell(written(tmp_path))
    text = shell.config.read_text().replace("[agent]", "[agent]\nsoul_path = 'soul.md'", 1)
    shell.config.write_text(text)
    (tmp_path / "soul.md").write_bytes(bytes(5 << 20))
    anyio.run(filled, tmp_path / "data")

    made = shell("backup", "create", str(tmp_path / "a.zip"))

    assert made.code == 0
    assert re.search(r"left out: .*soul\.md \(it is too large", made.err)


def test_without_a_store_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    refused = Shell(written(tmp_path))("backup", "create", str(tmp_path / "a.zip"))

    assert refused.code == 1
    assert "nothing to back up" in refused.err
    assert not (tmp_path / "a.zip").exists()


def test_damage_is_told_in_a_sentence_and_changes_nothing(tmp_path: Path) -> None:
    shell = offline(tmp_path)
    file = tmp_path / "a.zip"
    shell("backup", "create", str(file))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    checked = shell("--json", "backup", "verify", str(file))
    refused = shell("--data-dir", str(tmp_path / "new"), "backup", "restore", str(file))

    assert (checked.code, refused.code) == (1, 1)
    assert checked.json["error"]["code"] == "archive_damaged"
    assert "its bytes do not match its digest" in refused.err
    assert not (tmp_path / "new").exists()


def test_where_there_is_no_room_the_numbers_are_told(tmp_path: Path) -> None:
    shell = offline(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        refused = shell("backup", "create", str(disk / "a.zip"))
        assert [*disk.iterdir()] == []
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)

    assert refused.code == 1
    assert re.search(r"needs [\d,]+ bytes while it is made, and \S+ has [\d,]+ left", refused.err)


# --- killed --------------------------------------------------------------------------------------
STRIDE = 1 if is_long() else 3  # steps
CALLS = "fsync,fdatasync,rename,mkdir,unlink,rmdir,ftruncate"


def killed(words: list[str], inject: str, env: Mapping[str, str]) -> bool:
    """Runs a command that strace kills at a system call; False if it came to its end before."""
    under = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={inject.partition(':')[0]}", "-e"]
    with ExitStack() as stack:

        def trace(pid: int) -> None:
            tracer = subprocess.Popen(
                [*under, f"inject={inject}", "-p", str(pid)], stderr=subprocess.PIPE
            )
            stack.enter_context(tracer)
            assert tracer.stderr is not None
            assert b"attached" in tracer.stderr.readline()

        ended = commands().run(words, env={"PATH": os.defpath, **env}, first=trace)
    assert ended.code in {0, -9}, ended.err
    return ended.code != 0


def killed_at(when: int, words: list[str], home: Path) -> bool:
    """At that one of the system calls which change something."""
    return killed(words, f"{CALLS}:signal=KILL:when={when}", {"HOME": str(home)})


@strace
@pytest.mark.parametrize("force", [False, True])
def test_a_restore_killed_at_any_step_leaves_nothing_that_starts_in_part(
    tmp_path: Path, force: bool
) -> None:
    shell = offline(tmp_path)
    file = str(tmp_path / "a.zip")
    shell("backup", "create", file)
    kills = 0
    for when in range(1 + force, 99, STRIDE):
        folder = tmp_path / f"new{when}"
        if force:
            shutil.copytree(tmp_path / "data", folder)
        words = ["--data-dir", str(folder), "backup", "restore", file, *["--force"] * force]
        if not killed_at(when, words, tmp_path):
            break
        kills += 1
        is_begun = Path(f"{folder}{RESTORING}").exists()
        if is_begun:
            with pytest.raises(StoreRefused, match="was not finished"):
                anyio.run(values, folder)
        elif (folder / "store.db").exists():
            assert anyio.run(values, folder) == "a value"
        again = shell(*words, "--force")
        assert again.code == 0, again.err
        assert anyio.run(values, folder) == "a value"
        shutil.rmtree(folder)
    assert kills > 8 // STRIDE


@pytest.mark.parametrize("changes", [1, 2, 3, 4])
async def test_a_gateway_killed_while_it_makes_one_leaves_none_or_a_whole_one(
    tmp_path: Path, changes: int
) -> None:
    """Killed when the folder of backups has changed so often; whenever that is, the same holds."""
    shell = await to_thread.run_sync(offline, tmp_path)
    async with command(shell.config) as gateway, anyio.create_task_group() as group:
        group.start_soon(to_thread.run_sync, partial(shell, "backup", "create"))
        await to_thread.run_sync(changed, tmp_path / "data" / "backups", changes)
        gateway.kill()
    async with command(shell.config):
        await to_thread.run_sync(partial(shell, "chat", "-m", "hello"))
        made = await to_thread.run_sync(partial(shell, "--json", "backup", "create"))
        audit = await to_thread.run_sync(partial(shell, "audit", "verify"))

    assert (made.code, audit.code) == (0, 0)
    for file in [one async for one in anyio.Path(tmp_path / "data" / "backups").iterdir()]:
        checked = await to_thread.run_sync(partial(shell, "backup", "verify", str(file)))
        assert checked.code == 0, file


def changed(folder: Path, changes: int) -> None:
    """Waits until there were so many other files in it, or a whole backup."""
    seen, until = frozenset[tuple[str, int]](), time.monotonic() + START_S
    while changes and time.monotonic() < until:
        with suppress(FileNotFoundError):
            now = frozenset((one.name, one.stat().st_size) for one in folder.iterdir())
            if any(name.endswith(".zip") for name, _ in now):
                return
            changes -= now != seen
            seen = now


@strace
def test_a_backup_killed_at_any_step_leaves_no_archive_or_a_whole_one(tmp_path: Path) -> None:
    shell = offline(tmp_path)
    folder = tmp_path / "data" / "backups"
    words = ["--config", str(shell.config), "backup", "create"]
    kills = 0
    for when in range(1, 99, STRIDE):
        if not killed_at(when, words, tmp_path):
            break
        kills += 1
        for file in folder.glob("*.zip"):
            assert shell("backup", "verify", str(file)).code == 0
            file.unlink()
    assert kills > 6 // STRIDE
    assert {one.suffix for one in folder.iterdir()} == {".zip"}  # the last one swept the rest
    assert anyio.run(values, tmp_path / "data") == "a value"
