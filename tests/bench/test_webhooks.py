"""A tiny run: calls of platforms are accepted beside plain `chat.send`, in the same gateway."""

from pathlib import Path

from bench.webhooks import MICRO, measure


def test_webhooks_are_accepted_while_the_model_takes_its_time(tmp_path: Path) -> None:
    figures = {figure.name.partition(",")[0]: figure for figure in measure(MICRO, tmp_path)}

    pace = figures["webhook accepts"]
    assert pace.floor is not None
    assert min(pace.gateway, pace.floor) > 0  # which is faster is a matter for the benchmark
    assert figures["CPU an accept"].gateway > 0
    assert figures["slowest answer"].gateway < MICRO.model_ms
