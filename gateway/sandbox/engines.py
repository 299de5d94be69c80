"""The wasmtime engines: the same settings where guests are compiled and where they run."""

from wasmtime import Config, Engine

STACK_BYTES = 512 * 1024
THREAD_STACK_BYTES = 8 * 1024 * 1024
_RESERVED_BYTES = 64 * 1024 * 1024
_GUARD_BYTES = 64 * 1024


def _config() -> Config:
    config = Config()
    config.epoch_interruption = True
    config.consume_fuel = True
    # Traps as checks, not as signals: a signal handler that someone else sets would kill the process.
    config.signals_based_traps = False
    config.max_wasm_stack = STACK_BYTES
    config.memory_reservation = _RESERVED_BYTES
    config.memory_guard_size = _GUARD_BYTES
    config.parallel_compilation = False
    config.gc_support = False
    config.wasm_threads = False
    config.wasm_memory64 = False
    return config


def component_engine() -> Engine:
    # Several memories stay allowed here: without them composed components crash the compiler.
    return Engine(_config())


def core_engine() -> Engine:
    """For core modules, which need no second memory."""
    config = _config()
    config.wasm_multi_memory = False
    return Engine(config)
