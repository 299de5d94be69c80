"""A child process: compiles broken variants of guests, and runs those that survive it.

`python mutants.py FOLDER SEED COUNT GUEST...`: a line for each variant as it is done, so that whoever
started it knows which one ended the process.
"""

import random
import sys
import time
from pathlib import Path

from wasmtime import WasmtimeError

from gateway.sandbox.calls import GuestCall, component_engine
from gateway.sandbox.compiler import NotAPlugin, compile_guest
from gateway.sandbox.components import ComponentGuest
from gateway.sandbox.protocol import Bounds, Program
from gateway.sandbox.worker import run_guest

BOUNDS = Bounds(memory_bytes=16 << 20, fuel=2_000_000, output_bytes=1 << 16)


def mutated(wasm: bytes, other: bytes, chance: random.Random) -> bytes:
    made = bytearray(wasm)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(8, len(made))
        match chance.randrange(6):
            case 0:
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                made[at] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                del made[at : at + chance.randrange(1, 16)]
            case 3:
                made[at:at] = chance.randbytes(chance.randrange(1, 16))
            case 4:
                start = chance.randrange(len(other))
                made[at:at] = other[start : start + chance.randrange(1, 64)]
            case 5:
                del made[max(9, at) :]
        if len(made) < 16:
            break
    return bytes(made)


def tried(wasm: bytes, folder: Path, number: int) -> str:
    try:
        inspection, compiled = compile_guest(wasm)
    except (NotAPlugin, WasmtimeError):
        return "refused"
    if inspection.guest != "exogate":
        return "compiled"
    path = folder / f"{number}.cwasm"
    path.write_bytes(compiled)
    call = GuestCall(
        number, BOUNDS, time.monotonic() + 5, lambda *_: call.answers.put(("err", "no"))
    )
    try:
        guest = ComponentGuest(component_engine(), Program(str(path), "exogate", BOUNDS))
    except WasmtimeError:
        return "refused"
    return run_guest(call, guest, "handle-tool-call", '"x"')[0]


def main() -> None:
    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    guests = [Path(name).read_bytes() for name in sys.argv[4:]]
    chance = random.Random(seed)
    for number in range(1, count + 1):
        wasm, other = chance.sample(guests, 2)
        sys.stdout.write(f"{number} {tried(mutated(wasm, other, chance), folder, number)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
