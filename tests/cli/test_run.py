"""`exogate run`: a banner once it can answer, and one gateway a data directory."""

from pathlib import Path

import anyio

from tests.cli.conftest import Shell, end
from tests.fakes.compiled import USUAL, compiled
from tests.fakes.gateway import spawn


def test_a_second_gateway_on_the_same_data_is_refused_and_names_the_first(shell: Shell) -> None:
    ran = shell("run", "--port", "0")

    assert ran.code == 75
    assert "is in use by process" in ran.err
    assert ran.out == ""


def test_a_port_that_is_taken_is_said_with_what_to_do(shell: Shell, alone: Shell) -> None:
    status = shell("--json", "status")
    lock = Path(shell.config.parent / "data" / "lock").read_text(encoding="utf-8")
    port = lock.split(":")[-1].strip(' "}\n')

    ran = alone("run", "--port", port)

    assert status.code == 0
    assert ran.code == 75
    assert f"127.0.0.1:{port}" in ran.err
    assert "[gateway] bind or port" in ran.err
    assert "--port 0" in ran.err
    assert f"process {status.json['pid']} listens there" in ran.err


def test_a_bad_configuration_ends_with_78_and_its_place(alone: Shell) -> None:
    alone.config.write_text("[gateway]\nprot = 1\n", encoding="utf-8")

    ran = alone("run")

    assert ran.code == 78
    assert ":2:1:" in ran.err
    assert 'did you mean "port"' in ran.err
    assert "Traceback" not in ran.err


def test_the_banner_has_at_most_14_lines_and_says_where_it_listens(alone: Shell) -> None:
    gateway = spawn(alone.config)
    assert anyio.run(gateway.ready)
    end(gateway)
    banner = gateway.output.read_text(encoding="utf-8").splitlines()

    assert len(banner) <= 14
    assert any("ws://127.0.0.1:" in line for line in banner)


def test_the_banner_of_a_start_without_agents_tells_the_daily_budget(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    compiled(tmp_path / "data", *USUAL)
    config.write_text(f"[gateway]\ndata_dir = '{tmp_path}/data'\n", encoding="utf-8")

    gateway = spawn(config)
    assert anyio.run(gateway.ready)
    end(gateway)
    banner = gateway.output.read_text(encoding="utf-8")

    assert "20,000 tokens a day" in banner
    assert len([line for line in banner.splitlines() if not line.startswith("{")]) <= 14


def test_the_banner_tells_channels_apart_from_tools_and_why_one_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    compiled(tmp_path / "data", "webhook", *USUAL)
    config.write_text(
        f"""
        gateway.data_dir = '{tmp_path}/data'
        [[plugins]]
        name = "webhook"
        path = "bundled:webhook"
        [channels.ci]
        plugin = "webhook"
        config.scheme = "github"
        secrets.secret = "hunter2-hunter2"
        [channels.bare]
        plugin = "webhook"
        config.scheme = "github"
        """,
        encoding="utf-8",
    )

    gateway = spawn(config)
    assert anyio.run(gateway.ready)
    end(gateway)
    banner = gateway.output.read_text(encoding="utf-8")

    assert "  Channels   ci\n" in banner
    assert "refused: bare: secret 'secret' is missing" in banner
    assert "tools echo, calc, time, notes" in banner


def test_a_soul_that_is_missing_is_one_sentence(alone: Shell) -> None:
    text = alone.config.read_text(encoding="utf-8").replace(
        'id = "demo"', 'id = "demo"\nsoul_path = "nowhere.md"'
    )
    alone.config.write_text(text, encoding="utf-8")

    ran = alone("run")

    assert ran.code == 78
    assert "nowhere.md" in ran.err
