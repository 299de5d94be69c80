"""Host functions of the operator's packages: found by name, and no harm if one is broken."""

from pathlib import Path

import pytest

from gateway.app.plugins import host_functions
from gateway.domain.capabilities import FunctionGrant
from gateway.domain.plugins import PluginDef

ENTRIES = """\
[exogate.host_functions]
shelf = exogate_test_shelf:shelf
broken = exogate_test_shelf:missing
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "exogate_test_shelf-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: exogate-test-shelf\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    source = "async def shelf(text, plugin):\n    return text\n"
    (tmp_path / "exogate_test_shelf.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_one_that_cannot_be_loaded_is_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ("shelf", "broken", "absent", "clock")
    plugin = PluginDef("p", Path("p.wasm"), tuple(map(FunctionGrant, names)))

    assert set(host_functions([plugin])) == {"folder", "shelf"}
    said = {(one.getMessage(), vars(one)["function"]) for one in caplog.records}
    assert said == {
        ("a host function cannot be loaded", "broken"),
        ("a host function is not there", "absent"),
    }
