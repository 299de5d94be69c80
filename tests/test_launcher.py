"""The command starts only if the package `gateway` is exogate's own."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start(first_on_path: Path) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path[:0] = [{str(first_on_path)!r}, {str(ROOT)!r}]\n"
        "sys.argv = ['exogate', 'version']\n"
        "from exogate_launcher import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=first_on_path,
        timeout=30,
    )


def test_it_is_installed_under_a_name_that_no_other_distribution_has() -> None:
    spec = find_spec("exogate_launcher")

    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_bytes() == (ROOT / "gateway" / "launcher.py").read_bytes()


def test_our_own_package_is_started(tmp_path: Path) -> None:
    assert start(tmp_path).stdout.startswith("exogate ")


def test_anothers_package_is_never_imported(tmp_path: Path) -> None:
    foreign = tmp_path / "gateway"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('foreign code ran')\n")

    ran = start(tmp_path)

    assert ran.returncode == 1
    assert "belongs to another distribution" in ran.stderr
    assert "foreign code ran" not in ran.stderr
