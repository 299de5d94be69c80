"""The small steps of the wasmtime binding keep Python's lock.

It gives the lock up in each of its functions, some 25 times around one call of a guest. When another
thread waits for the lock, every time costs two changes of thread: far more than the step itself.
"""

import ctypes
import re

from wasmtime import _bindings
from wasmtime import _ffi as ffi

# Each is over at once, whatever the guest is, and runs nothing of it.
_STEPS = re.compile(
    r"_wasmtime_(store_(new|context|limiter|epoch_deadline_callback)"
    r"|context_(set_fuel|get_fuel|set_epoch_deadline)"
    r"|component_(instance_get_func|val_new|func_type|\w+_type_\w+)"
    r"|func_type|extern_delete|linker_get|memory_data|memory_data_size)"
    r"|_wasm_(func|memory|val|extern)type_\w+"
)


def keep_lock() -> None:
    """Once, before the first call."""
    keeping = ctypes.PyDLL(None, handle=ffi.dll._handle)  # noqa: SLF001  # the library is open already
    for name, step in list(vars(_bindings).items()):
        if _STEPS.fullmatch(name):
            kept = getattr(keeping, name[1:])
            kept.restype, kept.argtypes = step.restype, step.argtypes
            setattr(_bindings, name, kept)
