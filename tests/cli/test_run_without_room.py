"""`exogate run` where files cannot be written: a sentence and exit 1, whatever it is that does not fit."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.cli.test_run_signals import CONFIG, RUN, Site, environment, started
from tests.fakes.gateway import ROOT, START_S

# Of the lock, of the operator's key, of a page, of the whole database.
SIZES = (0, 1, 10, 40, 100, 4_096, 20_000, 100_000, 300_000)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(folder=tmp_path), encoding="utf-8")
    return path


def limited(size: int) -> str:
    """No file may grow beyond that."""
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))"
    return f"import resource, sys; sys.dont_write_bytecode = True; {limit}; {RUN}"


def outcome(config: Path, code: str) -> tuple[int, list[str]]:
    """Of a start that cannot succeed."""
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(config), "run"],
        cwd=ROOT,
        env=environment(config),
        capture_output=True,
        timeout=START_S,
        text=True,
        check=False,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if " info " not in line]


def is_one_sentence(said: list[str]) -> bool:
    return len(said) == 1 and said[0].startswith("exogate: ") and "Traceback" not in said[0]


@pytest.mark.parametrize("size", SIZES)
def test_a_first_start_without_room_ends_with_a_sentence(config: Path, size: int) -> None:
    code, said = outcome(config, limited(size))

    assert code == 1
    assert is_one_sentence([line for line in said if "store cannot commit" not in line])
    assert "may not grow" in said[-1] or "is full" in said[-1]


@pytest.mark.parametrize("size", SIZES[:6])
def test_a_later_start_without_room_ends_with_a_sentence_and_the_next_one_is_well(
    config: Path, size: int
) -> None:
    once(config)

    code, said = outcome(config, limited(size))

    assert code == 1
    assert is_one_sentence([line for line in said if "store cannot commit" not in line])
    once(config)


def once(config: Path) -> None:
    """A gateway that starts, answers and ends."""
    with started(config, out=subprocess.DEVNULL, err=subprocess.DEVNULL) as site:
        site.ready()
        site.tell(signal.SIGTERM)
        assert site.code() == 0


@pytest.mark.parametrize("name", ["operator.key", "lock", "store.mark", "store.db"])
def test_a_file_of_its_own_that_it_cannot_write_is_named_in_a_sentence(
    config: Path, name: str
) -> None:
    (config.parent / "data" / name).mkdir(parents=True)

    code, said = outcome(config, RUN)

    assert code == 1
    assert is_one_sentence(said)
    assert name in said[0]


def test_a_gateway_that_may_write_nothing_any_more_stops_in_good_order(config: Path) -> None:
    with started(config, out=subprocess.DEVNULL, err=subprocess.DEVNULL) as site:
        site.ready()
        resource.prlimit(site.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        refused = said_to(site, config)
        site.tell(signal.SIGTERM)
        code = site.code()

    assert refused == 75
    assert code == 0


def said_to(site: Site, config: Path) -> int:
    """The exit code of a client that asks."""
    assert site.process.poll() is None
    return Shell(config)("chat", "-m", "hi").code


def test_doctor_without_room_says_what_it_could_not_try(config: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", limited(0), "--json", "--config", str(config), "doctor"],
        cwd=ROOT,
        env=environment(config),
        capture_output=True,
        timeout=START_S,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "plugin.trial" in done.stdout
