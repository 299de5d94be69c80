from pathlib import Path

import pytest

from bench import targets
from bench.load import ask_once, client_frame, frames
from bench.targets import ModelPlan, load

NOBODY = 1  # a port where no model server listens


def test_floor_and_gateway_answer_the_load_generator_alike(tmp_path: Path) -> None:
    with (
        targets.model(ModelPlan(tokens=7)) as model,
        targets.floor(model.port, tmp_path / "floor") as floor,
        targets.gateway(model.port, tmp_path / "gateway") as gateway,
    ):
        for server in (floor, gateway):
            seen = load(server, sessions=4, messages=20, peers=10)

            assert seen["errors"] == []
            assert (seen["messages"], seen["tokens"]) == (20, 140)
            assert seen["cpu_ms"] > 0
        told = targets.stats(model)
        assert told["requests"] == 2 * (20 + 4)  # with the message each to warm up
        assert told["open"] == 0


def test_a_single_question_is_answered(tmp_path: Path) -> None:
    with (
        targets.model(ModelPlan()) as model,
        targets.floor(model.port, tmp_path / "floor") as floor,
    ):
        assert ask_once(floor.port, None) > 0


def test_an_error_is_counted_as_an_error_and_not_as_an_answer(tmp_path: Path) -> None:
    with targets.gateway(NOBODY, tmp_path / "alone") as gateway:
        seen = load(gateway, sessions=1, messages=1, warm_up=0)

        assert seen["messages"] == 0
        assert len(seen["errors"]) == 1


@pytest.mark.parametrize("size", [0, 125, 126, 60_000])
def test_a_frame_is_found_only_once_it_is_whole(size: int) -> None:
    head = bytes([0x81, size]) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")
    whole = head + b"x" * size

    assert list(frames(whole + whole[:1])) == [(1, len(head), len(whole))]
    assert list(frames(whole[:-1])) == []


def test_a_clients_frame_is_masked() -> None:
    short, long = client_frame(b"a"), client_frame(b"a" * 200)

    assert short == b"\x81\x81" + bytes(4) + b"a"
    assert long[:4] == b"\x81\xfe\x00\xc8"
