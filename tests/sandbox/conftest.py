"""Engines whose clock ticks."""

from collections.abc import Iterator

import pytest
from wasmtime import Engine

from gateway.sandbox.calls import component_engine, core_engine
from tests.fakes.guests import ticking


@pytest.fixture(scope="module")
def core() -> Iterator[Engine]:
    with ticking(core_engine()) as engine:
        yield engine


@pytest.fixture(scope="module")
def components() -> Iterator[Engine]:
    with ticking(component_engine()) as engine:
        yield engine
