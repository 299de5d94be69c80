"""A tiny run: calls of a foreign tool through the gate, beside the SDK's own."""

from pathlib import Path

from bench.mcp import MICRO, WAYS, measure


def test_calls_of_a_server_are_measured_beside_the_bare_sdk(tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in measure(MICRO, tmp_path)}

    for way in WAYS:
        for name in (f"a call p50, {way}", f"connected and listed, {way}"):
            assert figures[name].gateway > 0
            assert figures[name].floor
    memory = figures["RSS of the gateway with one server"]
    assert memory.floor is not None
    assert memory.gateway > memory.floor
