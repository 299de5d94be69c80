"""A tiny run: one gateway over a SurrealDB server, and two that share it."""

from pathlib import Path

import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from bench.cluster import MICRO, measure


def test_two_gateways_answer_as_one_does_and_each_share_of_the_processors_is_told(
    tmp_path: Path,
) -> None:
    figures = {
        figure.name.partition(", 4 sessions")[0]: figure for figure in measure(MICRO, tmp_path)
    }

    two = figures["throughput, two gateways"]
    assert two.floor is not None
    assert min(two.gateway, two.floor) > 0  # which is faster is a matter for the benchmark
    assert figures["CPU a message, two: store"].gateway > 0
    assert figures["requests to the store a message, alone"].gateway >= 2
