"""What the gateway needs is pinned: in one version, whichever of the lock files is installed."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_all_lock_files_agree() -> None:
    versions: dict[str, set[str]] = {}
    for path in LOCKS:
        for name, version in pins(path).items():
            versions.setdefault(name, set()).add(version)

    assert [path.name for path in LOCKS] == [
        "requirements-dev.lock",
        "requirements-mcp.lock",
        "requirements.lock",
    ]
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_extra_has_all_that_it_needs_beside_the_core() -> None:
    core, extra, dev = (
        pins(ROOT / f"requirements{kind}.lock").keys() for kind in ("", "-mcp", "-dev")
    )

    assert "mcp" in extra
    assert "mcp" not in core
    assert extra <= dev


def test_every_file_of_a_package_is_known_by_its_digest() -> None:
    for path in LOCKS:
        text = path.read_text(encoding="utf-8")
        blocks = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)
        assert all("--hash=sha256:" in block for block in blocks if "==" in block), path.name
