"""The memory that an Extism guest and its host share: a small module of its own, made for each call.

It runs as WebAssembly because guests fetch their input from it eight bytes at a time.
"""

import struct

from wasmtime import Engine, Func, InstancePre, Linker, Memory, Module, Store

from gateway.sandbox.abis import EXTISM

# Below 64: where input, output and error are, and where the blocks end. Then the blocks, each after
# a head: whether it is in use, its room, its length. A guest can spoil blocks, and only its own.
_IN_USE, _FREE, _HEAD = 0x65787561, 0x65787566, 16
_STATE = struct.Struct("<QQQQQ")
_KERNEL = f"""(module
  (memory (export "memory") 1)
  (data (i32.const 40) "\\40")

  (func $fits (param $at i64) (param $size i64) (result i32) (local $end i64)
    (local.set $end (i64.shl (i64.extend_i32_u (memory.size)) (i64.const 16)))
    (i32.and
      (i32.and (i64.ge_u (local.get $at) (i64.const 64)) (i64.le_u (local.get $size) (local.get $end)))
      (i64.le_u (local.get $at) (i64.sub (local.get $end) (local.get $size)))))
  (func (export "load_u8") (param $at i64) (result i32)
    (if (call $fits (local.get $at) (i64.const 1))
      (then (return (i32.load8_u (i32.wrap_i64 (local.get $at))))))
    (i32.const 0))
  (func (export "load_u64") (param $at i64) (result i64)
    (if (call $fits (local.get $at) (i64.const 8))
      (then (return (i64.load (i32.wrap_i64 (local.get $at))))))
    (i64.const 0))
  (func (export "store_u8") (param $at i64) (param $value i32)
    (if (call $fits (local.get $at) (i64.const 1))
      (then (i32.store8 (i32.wrap_i64 (local.get $at)) (local.get $value)))))
  (func (export "store_u64") (param $at i64) (param $value i64)
    (if (call $fits (local.get $at) (i64.const 8))
      (then (i64.store (i32.wrap_i64 (local.get $at)) (local.get $value)))))

  (func $input_length (export "input_length") (result i64) (i64.load (i32.const 8)))
  (func $input_offset (export "input_offset") (result i64) (i64.load (i32.const 0)))
  (func (export "input_load_u8") (param $at i64) (result i32)
    (if (i64.lt_u (local.get $at) (call $input_length))
      (then (return
        (i32.load8_u (i32.wrap_i64 (i64.add (call $input_offset) (local.get $at)))))))
    (i32.const 0))
  (func (export "input_load_u64") (param $at i64) (result i64)
    (if (i32.and (i64.ge_u (call $input_length) (i64.const 8))
                 (i64.le_u (local.get $at) (i64.sub (call $input_length) (i64.const 8))))
      (then (return (i64.load (i32.wrap_i64 (i64.add (call $input_offset) (local.get $at)))))))
    (i64.const 0))
  (func (export "output_offset") (result i64) (i64.load (i32.const 16)))
  (func (export "output_length") (result i64) (i64.load (i32.const 24)))
  (func (export "output_set") (param $at i64) (param $size i64)
    (if (i32.or (i64.eqz (local.get $size)) (call $fits (local.get $at) (local.get $size)))
      (then
        (i64.store (i32.const 16) (local.get $at))
        (i64.store (i32.const 24) (local.get $size)))))
  (func (export "error_get") (result i64) (i64.load (i32.const 32)))
  (func (export "error_set") (param $at i64) (i64.store (i32.const 32) (local.get $at)))

  (func $alloc (export "alloc") (param $size i64) (result i64)
    (local $room i32) (local $at i32) (local $end i32) (local $next i64)
    (if (i32.or (i64.eqz (local.get $size)) (i64.gt_u (local.get $size) (i64.const 0x40000000)))
      (then (return (i64.const 0))))
    (local.set $room
      (i32.and (i32.add (i32.wrap_i64 (local.get $size)) (i32.const 7)) (i32.const -8)))
    (local.set $end (i32.load (i32.const 40)))
    (local.set $at (local.get $end))
    (local.set $next
      (i64.add (i64.extend_i32_u (i32.add (local.get $at) (i32.const {_HEAD})))
               (i64.extend_i32_u (local.get $room))))
    (if (i32.eqz (call $fits (i64.const 64) (i64.sub (local.get $next) (i64.const 64))))
      (then
        (local.set $at (call $freed (local.get $room) (local.get $end)))
        (if (local.get $at)
          (then
            (call $take (local.get $at) (i32.load offset=4 (local.get $at)) (local.get $size))
            (return (i64.extend_i32_u (i32.add (local.get $at) (i32.const {_HEAD}))))))
        (local.set $at (local.get $end))
        (if (i32.eq (i32.const -1) (memory.grow (i32.wrap_i64 (i64.add (i64.const 1)
              (i64.shr_u (i64.sub (local.get $next)
                (i64.shl (i64.extend_i32_u (memory.size)) (i64.const 16))) (i64.const 16))))))
          (then (return (i64.const 0))))))
    (i32.store (i32.const 40) (i32.wrap_i64 (local.get $next)))
    (call $take (local.get $at) (local.get $room) (local.get $size))
    (i64.extend_i32_u (i32.add (local.get $at) (i32.const {_HEAD}))))
  (func $take (param $head i32) (param $room i32) (param $size i64)
    (i32.store (local.get $head) (i32.const {_IN_USE}))
    (i32.store offset=4 (local.get $head) (local.get $room))
    (i64.store offset=8 (local.get $head) (local.get $size)))
  (func $freed (param $room i32) (param $end i32) (result i32) (local $at i64)
    (local.set $at (i64.const 64))
    (loop $search
      (if (i64.gt_u (i64.add (local.get $at) (i64.const {_HEAD})) (i64.extend_i32_u (local.get $end)))
        (then (return (i32.const 0))))
      (if (i32.and
            (i32.eq (i32.load (i32.wrap_i64 (local.get $at))) (i32.const {_FREE}))
            (i32.ge_u (i32.load offset=4 (i32.wrap_i64 (local.get $at))) (local.get $room)))
        (then (return (i32.wrap_i64 (local.get $at)))))
      (local.set $at (i64.add (i64.add (local.get $at) (i64.const {_HEAD}))
        (i64.load32_u offset=4 (i32.wrap_i64 (local.get $at)))))
      (br $search))
    (i32.const 0))

  (func $head (param $at i64) (result i32)
    (if (i32.and (i64.ge_u (local.get $at) (i64.const {64 + _HEAD}))
                 (call $fits (i64.sub (local.get $at) (i64.const {_HEAD})) (i64.const {_HEAD})))
      (then
        (if (i32.eq (i32.const {_IN_USE})
                    (i32.load (i32.wrap_i64 (i64.sub (local.get $at) (i64.const {_HEAD})))))
          (then (return (i32.wrap_i64 (i64.sub (local.get $at) (i64.const {_HEAD}))))))))
    (i32.const 0))
  (func $length (export "length") (export "length_unsafe") (param $at i64) (result i64)
    (local $head i32)
    (local.set $head (call $head (local.get $at)))
    (if (local.get $head) (then (return (i64.load offset=8 (local.get $head)))))
    (i64.const 0))
  (func (export "free") (param $at i64) (local $head i32)
    (local.set $head (call $head (local.get $at)))
    (if (i32.eqz (local.get $head)) (then (return)))
    (i32.store (local.get $head) (i32.const {_FREE}))
    (if (i64.eq (local.get $at) (call $input_offset))
      (then (i64.store (i32.const 8) (i64.const 0))))
    (if (i64.eq (i64.load32_u (i32.const 40))
                (i64.add (local.get $at) (i64.load32_u offset=4 (local.get $head))))
      (then (i32.store (i32.const 40) (local.get $head)))))
  (func (export "reset")
    (memory.fill (i32.const 64) (i32.const 0) (i32.sub (i32.load (i32.const 40)) (i32.const 64)))
    (memory.fill (i32.const 0) (i32.const 0) (i32.const 40))
    (i32.store (i32.const 40) (i32.const 64))))
"""


def kernel_of(engine: Engine) -> InstancePre:
    return Linker(engine).instantiate_pre(Module(engine, _KERNEL))


class Kernel:
    """One call's. Nothing that a guest wrote there is believed without a look at its bounds."""

    def __init__(self, store: Store, linker: Linker) -> None:
        """The linker has the kernel's instance already."""
        self._store = store
        memory, alloc = (linker.get(store, EXTISM, name) for name in ("memory", "alloc"))
        assert isinstance(memory, Memory)
        assert isinstance(alloc, Func)
        self._memory, self._alloc = memory, alloc

    def put(self, data: bytes) -> int:
        """Where it is now; 0 if it is empty or there is no room."""
        at = int(self._alloc(self._store, len(data)))
        if at:
            self._memory.write(self._store, bytearray(data), at)
        return at

    def put_input(self, data: bytes) -> None:
        """Raises MemoryError if there is no room."""
        at = self.put(data)
        if data and not at:
            raise MemoryError
        self._memory.write(self._store, bytearray(struct.pack("<QQ", at, len(data))), 0)

    def block(self, handle: int) -> bytes | None:
        """What was allocated there; None if nothing was."""
        at = handle & 0xFFFF_FFFF_FFFF_FFFF
        head = self._read(at - _HEAD, _HEAD) if at >= 64 + _HEAD else None
        if head is None:
            return None
        state, _room, length = struct.unpack("<IIQ", head)
        return self._read(at, length) if state == _IN_USE else None

    def output(self) -> bytes:
        _, _, at, length, _ = self._state()
        return self._read(at, length) or b""

    def error(self) -> bytes:
        """Empty if there is none."""
        return self.block(self._state()[4]) or b""

    def _state(self) -> tuple[int, ...]:
        return _STATE.unpack(self._memory.read(self._store, 0, _STATE.size))

    def _read(self, at: int, length: int) -> bytes | None:
        if at + length > self._memory.data_len(self._store):
            return None
        return bytes(self._memory.read(self._store, at, at + length))
