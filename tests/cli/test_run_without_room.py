"""`exogate run` where files cannot be written: a sentence and exit 1, whatever it is that does not fit."""

import os
import re
import resource
import signal
import urllib.error
import urllib.request
from pathlib import Path

import anyio
import pytest

from gateway.store.opening import read_owner
from tests.cli.conftest import Shell
from tests.cli.test_run_signals import Site, environment, started, until, written
from tests.fakes.commands import First, commands
from tests.fakes.gateway import START_S, spawn
from tests.forms import is_long

# Of the lock, of the operator's key, of a page, of the whole database.
SIZES = [0, 40, 4_096, 100_000, *([1, 10, 100, 20_000, 300_000] if is_long() else [])]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path)


def limit(size: int) -> First:
    """No file may grow beyond that."""
    return lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def outcome(config: Path, *words: str, first: First | None = None) -> tuple[int, str, list[str]]:
    """Of a start that cannot succeed: its exit code, its output, its errors."""
    pipes = [os.pipe() for _ in range(2)]
    with Path(os.devnull).open("rb") as nothing:
        files = [nothing.fileno(), *(into for _, into in pipes)]
        given = ["--config", str(config), *words]
        process = commands().begin(given, environment(config), files, first=first)
    for _, into in pipes:
        os.close(into)
    out, err = (os.fdopen(end, "rb") for end, _ in pipes)
    with out, err:
        said = err.read().decode().splitlines()
        told = out.read().decode()
    return process.wait(START_S), told, [line for line in said if " info " not in line]


def is_one_sentence(said: list[str]) -> bool:
    return len(said) == 1 and said[0].startswith("exogate: ") and "Traceback" not in said[0]


@pytest.mark.parametrize("size", SIZES)
def test_a_first_start_without_room_ends_with_a_sentence(config: Path, size: int) -> None:
    code, _, said = outcome(config, "run", first=limit(size))

    assert code == 1
    assert is_one_sentence([line for line in said if "store_cannot_commit" not in line])
    assert "may not grow" in said[-1] or "is full" in said[-1]


def test_a_later_start_without_room_ends_with_a_sentence_and_the_next_one_is_well(
    config: Path,
) -> None:
    once(config)
    for size in [size for size in SIZES if size <= 4_096]:
        code, _, said = outcome(config, "run", first=limit(size))

        assert code == 1, size
        assert is_one_sentence([line for line in said if "store_cannot_commit" not in line]), size
        once(config)


def once(config: Path) -> None:
    """A gateway that starts, answers and ends."""
    site = spawn(config)
    assert site.process.stdout is not None
    with site.process.stdout:
        assert anyio.run(site.ready)
        site.tell(signal.SIGTERM)
        assert site.process.wait(START_S) == 0


@pytest.mark.parametrize("name", ["operator.key", "lock", "store.mark", "store.db"])
def test_a_file_of_its_own_that_it_cannot_write_is_named_in_a_sentence(
    config: Path, name: str
) -> None:
    (config.parent / "data" / name).mkdir(parents=True)

    code, _, said = outcome(config, "run")

    assert code == 1
    assert is_one_sentence(said)
    assert name in said[0]


def test_a_gateway_that_may_write_nothing_any_more_stops_in_good_order(config: Path) -> None:
    with started(config) as site:
        site.ready()
        allow(site, 0)
        refused = said_to(site, config)
        site.tell(signal.SIGTERM)
        code = site.code()

    assert refused == 75
    assert code == 0


def test_with_no_file_able_to_grow_it_says_so_and_is_well_once_there_is_room(config: Path) -> None:
    shell = Shell(config)
    with started(config) as site:
        site.ready()
        allow(site, 0)
        refused = said_to(site, config)
        told, ready = shell("--json", "status"), readiness(config)
        read = shell("--json", "session", "list")
        assert site.process.poll() is None
        allow(site, resource.RLIM_INFINITY)
        until(lambda: shell("status").code == 0)
        site.answers()
        again = readiness(config)
        site.tell(signal.SIGTERM)
        assert site.code() == 0

    assert refused == 75
    assert (told.code, told.json["ready"], told.json["healthy"]) == (1, False, False)
    assert ["may not grow" in one or "is full" in one for one in told.json["reasons"]] == [True]
    assert (ready, again) == (503, 200)
    assert read.code == 0
    lines = [path.read_text(encoding="utf-8") for path in (config.parent / "data/logs").iterdir()]
    assert "log_files_written_again" in "".join(lines)


def test_a_disk_that_fills_while_a_backup_is_made_leaves_no_part_of_one(config: Path) -> None:
    shell, folder = Shell(config), config.parent / "data" / "backups"
    with started(config) as site:
        site.ready()
        whole = Path(shell("--json", "backup", "create").json["file"])
        for share in (0.05, 0.5, 0.99):
            before = {*folder.iterdir()}
            allow(site, int(whole.stat().st_size * share))
            refused = shell("backup", "create")
            left = {*folder.iterdir()}
            allow(site, resource.RLIM_INFINITY)
            until(lambda: shell("status").code == 0)
            made = shell("--json", "backup", "create")
            checked = shell("backup", "verify", made.json["file"])

            assert refused.code in {1, 75}, share
            assert re.search("may not grow|is full|too large", refused.err), share
            assert left == before, share
            assert (made.code, checked.code) == (0, 0), share


def allow(site: Site, size: int) -> None:
    """From now on no file of the gateway may grow beyond that."""
    limit(size)(site.process.pid)


def readiness(config: Path) -> int:
    """What /readyz answers."""
    owner = read_owner(config.parent / "data")
    assert owner is not None
    try:
        with urllib.request.urlopen(f"{owner.url}/readyz", timeout=START_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def said_to(site: Site, config: Path) -> int:
    """The exit code of a client that asks."""
    assert site.process.poll() is None
    return Shell(config)("chat", "-m", "hi").code


def test_doctor_without_room_says_what_it_could_not_try(config: Path) -> None:
    code, told, said = outcome(config, "--json", "doctor", first=limit(0))

    assert code == 1
    assert "Traceback" not in "".join(said)
    assert "plugin.trial" in told
