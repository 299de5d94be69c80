"""What the gateway needs is pinned: in one version, whichever of the lock files is installed."""

import json
import re
from pathlib import Path

from tools.build_guests import lock_of

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "locks").glob("*.lock"))
ORACLES = ROOT / "tests" / "oracles"
OTHERS = (ORACLES / "requirements.lock", ROOT / "tools" / "guests" / "requirements.lock")
NODE_LOCKS = sorted([ORACLES / "package-lock.json", *ROOT.glob("tools/guests/*/package-lock.json")])


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_all_lock_files_agree() -> None:
    versions: dict[str, set[str]] = {}
    for path in LOCKS:
        for name, version in pins(path).items():
            versions.setdefault(name, set()).add(version)

    assert [path.name for path in LOCKS] == ["dev.lock", "mcp.lock", "run.lock"]
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_extra_has_all_that_it_needs_beside_the_core() -> None:
    dev, extra, core = (pins(path).keys() for path in LOCKS)

    assert "mcp" in extra
    assert "mcp" not in core
    assert extra <= dev


def test_every_file_of_a_package_is_known_by_its_digest() -> None:
    for path in (*LOCKS, *OTHERS):
        text = path.read_text(encoding="utf-8")
        blocks = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)
        assert all("--hash=sha256:" in block for block in blocks if "==" in block), path.name


def test_what_the_oracles_have_besides_agrees_with_what_the_tests_have() -> None:
    dev, oracles = pins(LOCKS[0]), pins(OTHERS[0])

    assert {name for name in dev.keys() & oracles.keys() if dev[name] != oracles[name]} == set()
    assert {"openai", "schemathesis"} <= oracles.keys()


def test_every_package_of_npm_is_known_by_its_digest_and_by_no_address() -> None:
    for path in NODE_LOCKS:
        locked = json.loads(path.read_text(encoding="utf-8"))
        asked = json.loads((path.parent / "package.json").read_text(encoding="utf-8"))
        root, *packages = locked["packages"].values()

        assert all(one.get("integrity", "").startswith("sha512-") for one in packages), path
        assert not any("resolved" in one for one in packages), path
        for kind in ("dependencies", "optionalDependencies"):
            assert root.get(kind) == asked.get(kind), path
    assert len(NODE_LOCKS) == 4


# What gets something from an index or a registry, and what makes it check a digest.
INSTALLS = re.compile(r"pip install (?P<pip>.*)|npm (?P<npm>install|ci)\b|(?P<npx>npx) -")


def test_ci_installs_nothing_without_its_digest() -> None:
    found = []
    for path in (ROOT / ".ci" / "run", ORACLES / "run"):
        for line in path.read_text(encoding="utf-8").splitlines():
            match = INSTALLS.search(line)
            if match is None:
                continue
            found.append(line)
            given = match["pip"] or ""
            is_ours = "--no-deps --no-build-isolation -e ." in given
            assert is_ours or "--require-hashes -r" in given or match["npm"] == "ci", line

    assert len(found) == 7


def test_what_ci_builds_of_npm_is_locked() -> None:
    for path in (ROOT / "wasm-examples").glob("*/plugin.toml"):
        if path.parent.name == "rust":
            continue  # its toolchain is no package of an index
        lock = lock_of(path.parent)
        assert (lock is None) == ("npx" not in path.read_text(encoding="utf-8")), path
