"""`exogate doctor` shows what its checks found."""

from pathlib import Path

import pytest

from gateway.app.doctor import claims
from gateway.config.values import GatewayConfig
from tests.cli.conftest import Shell


def test_findings_are_shown_with_what_to_do(alone: Shell) -> None:
    text = alone.config.read_text(encoding="utf-8")
    more = '[[bindings]]\nagent_id = "demo"\nchannel = "telegram"\n'
    alone.config.write_text(text + more, encoding="utf-8")

    ran = alone("doctor")

    assert "⚠ bindings.1" in ran.out
    assert "config unset bindings.1 --yes" in ran.out


@pytest.mark.parametrize(
    ("file", "text", "is_ours"),
    [
        ("RECORD", "other.py,,\ngateway/__init__.py,,\n", True),
        ("top_level.txt", "other\ngateway\n", True),
        ("RECORD", "gateways/__init__.py,,\nother/gateway/__init__.py,,\n", False),
    ],
)
def test_another_distribution_with_a_package_of_our_name_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, is_ours: bool
) -> None:
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    found = [one.id for one in claims(GatewayConfig())]

    assert found == ["install.package"] * is_ours
