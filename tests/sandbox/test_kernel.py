"""The memory of an Extism call, as its host writes and reads it."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import Engine, InstancePre, Linker, Store

from gateway.sandbox.calls import core_engine, open_store
from gateway.sandbox.extism import Kernel, kernel_of
from gateway.sandbox.protocol import EXTISM
from tests.fakes.guests import call_of


@pytest.fixture(scope="module")
def engine() -> Engine:
    return core_engine()


@pytest.fixture(scope="module")
def pre(engine: Engine) -> InstancePre:
    return kernel_of(engine)


@pytest.fixture
def kernel(engine: Engine, pre: InstancePre) -> Iterator[Kernel]:
    with open_store(engine, call_of([])) as store:
        yield _kernel(engine, pre, store)


def _kernel(engine: Engine, pre: InstancePre, store: Store) -> Kernel:
    linker = Linker(engine)
    linker.define_instance(store, EXTISM, pre.instantiate(store))
    return Kernel(store, linker)


@given(st.lists(st.binary(min_size=1, max_size=70_000), max_size=8))
def test_blocks_keep_what_was_put_there(
    engine: Engine, pre: InstancePre, blocks: list[bytes]
) -> None:
    with open_store(engine, call_of([])) as store:
        kernel = _kernel(engine, pre, store)

        places = [kernel.put(block) for block in blocks]

        assert [kernel.block(place) for place in places] == blocks


@pytest.mark.parametrize("handle", [0, 1, 64, 79, 81, 1 << 40, -1, 1 << 63])
def test_what_nobody_put_there_is_no_block(kernel: Kernel, handle: int) -> None:
    kernel.put(b"something")

    assert kernel.block(handle) is None


def test_what_is_too_large_is_nowhere(kernel: Kernel) -> None:
    assert kernel.put(bytes(5 << 20)) == 0
    assert kernel.put(b"") == 0
    with pytest.raises(MemoryError):
        kernel.put_input(bytes(5 << 20))


def test_there_is_no_output_and_no_error_at_first(kernel: Kernel) -> None:
    kernel.put_input(b"input")

    assert (kernel.output(), kernel.error()) == (b"", b"")
