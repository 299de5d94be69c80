"""A tiny run: a store is copied to a SurrealDB server and back, and is the same."""

from pathlib import Path

import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from bench.copying import MICRO, measure


def test_a_copied_store_comes_back_as_it_was(tmp_path: Path) -> None:
    figures = {figure.name: figure.gateway for figure in measure(MICRO, tmp_path)}

    assert figures["rows"] > MICRO.sessions * MICRO.messages + MICRO.facts + MICRO.deeds
    assert min(figures["copied to SurrealDB"], figures["copied back"]) > 0
