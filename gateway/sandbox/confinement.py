"""Confines a worker before it loads guest code: no network, programs, files or other processes.

Linux only: seccomp and Landlock, each if the kernel has it. Both work without privileges and cannot be
undone. The result reports which of them is in force.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_PR_SET_PDEATHSIG = 1
_EPERM, _ENOSYS = 1, 38

# Refused: new sockets, programs and processes, access to other processes, and calls that bypass the
# checks of files and system calls. A machine without a call has no entry for it.
_REFUSED = {
    "x86_64": {
        "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53,
        "accept4": 288, "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "kill": 62,
        "tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "ptrace": 101,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pivot_root": 155,
        "chroot": 161, "mount": 165, "umount2": 166, "add_key": 248, "request_key": 249,
        "keyctl": 250, "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304,
        "setns": 308, "bpf": 321, "userfaultfd": 323, "chmod": 90, "fchmod": 91, "fchmodat": 268,
        "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "shmget": 29, "msgget": 68,
        "semget": 64, "init_module": 175, "finit_module": 313, "kexec_load": 246,
        "kexec_file_load": 320, "reboot": 169, "settimeofday": 164, "clock_settime": 227,
        "iopl": 172, "ioperm": 173,
    },
    "aarch64": {
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "fchmod": 52, "fchmodat": 53,
        "fchownat": 54, "fchown": 55, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "clock_settime": 112, "ptrace": 117, "kill": 129, "tkill": 130, "rt_sigqueueinfo": 138,
        "reboot": 142, "settimeofday": 170, "msgget": 186, "semget": 190, "shmget": 194,
        "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202,
        "connect": 203, "add_key": 217, "request_key": 218, "keyctl": 219, "execve": 221,
        "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242,
        "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280, "execveat": 281,
        "userfaultfd": 282, "kexec_file_load": 294,
    },
}  # fmt: skip
# These numbers are the same on every machine.
_REFUSED_NEW = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432,
    "pidfd_open": 434, "pidfd_getfd": 438, "process_madvise": 440, "fchmodat2": 452,
}  # fmt: skip
# Allowed only for this process: the first argument is a process id, or 0 for the caller.
_OURS_ALONE = {
    "x86_64": {"tgkill": 234, "prlimit64": 302},
    "aarch64": {"tgkill": 131, "prlimit64": 261},
}
_CLONE3 = 435
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_THREAD = 0x00010000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ = 0b1100  # read a file, list a directory
_WRITE = _READ | 0b1_0000_0010  # write a file, make a regular one


@dataclass(frozen=True, slots=True)
class Confinement:
    """The confinement in force. `landlock` is the kernel's version of Landlock; 0 without it."""

    seccomp: bool
    landlock: int


def confine(*, readable: Sequence[Path] = (), writable: Sequence[Path] = ()) -> Confinement:
    """Confines the process to the named paths. Call it before the first thread starts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not sys.platform.startswith("linux"):
        return Confinement(seccomp=False, landlock=0)
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1) != 0:
        return Confinement(seccomp=False, landlock=0)
    landlock = _restrict_files([(path, _READ) for path in readable], writable)
    return Confinement(seccomp=_filter_calls(platform.machine()), landlock=landlock)


def die_with_parent() -> None:
    """Makes the kernel kill this process with its parent, for a child without a socket to it. Other
    systems than Linux let it run to its end."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int, more: object = 0) -> int:
    zero = ctypes.c_ulong(0)
    return int(_LIBC.prctl(option, ctypes.c_ulong(value), more, zero, zero))


def _restrict_files(readable: list[tuple[Path, int]], writable: Sequence[Path]) -> int:
    version = _LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return 0
    handled = (1 << (13 + min(version - 1, 2))) - 1  # every right to files that this version knows
    # From version 4 on, Landlock also refuses TCP.
    attributes = struct.pack("<QQ", handled, 0b11) if version >= 4 else struct.pack("<Q", handled)
    rules = _LIBC.syscall(
        _LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)
    )
    if rules < 0:
        return 0
    try:
        for path, rights in (*readable, *((path, _WRITE) for path in writable)):
            _allow(rules, path, rights & handled)
        return int(version) if _LIBC.syscall(_LANDLOCK_RESTRICT, rules, 0) == 0 else 0
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("<Qi", rights, parent)
        if _LIBC.syscall(_LANDLOCK_ADD, rules, ctypes.c_int(1), rule, ctypes.c_uint(0)) != 0:
            raise OSError(ctypes.get_errno(), f"Landlock refuses {path}")
    finally:
        os.close(parent)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _filter_calls(machine: str) -> bool:
    refused = _REFUSED.get(machine)
    if refused is None:
        return False
    code = b"".join(_instructions(machine, sorted({**refused, **_REFUSED_NEW}.values())))
    program = _Program(len(code) // 8, code)
    return _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program)) == 0


def _instructions(machine: str, refused: Sequence[int]) -> list[bytes]:
    """Returns a BPF program that refuses the listed calls, new processes (not threads), and calls of
    another machine."""
    load, equal, at_least, bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown, kill = 0x7FFF0000, 0x00050000 | _EPERM, 0x00050000 | _ENOSYS, 0x80000000
    first = 16  # offset of the first argument

    def instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("<HBBI", code, then, otherwise, value)

    return [
        instruction(load, 4),  # the machine of the call
        instruction(equal, _AUDIT_ARCH[machine], 1, 0),
        instruction(give, kill),
        instruction(load, 0),  # the call's number
        instruction(at_least, 0x40000000, 0, 1),  # x32 has numbers of its own
        instruction(give, refuse),
        # glibc falls back to clone, whose flags the filter can read
        instruction(equal, _CLONE3, 0, 1),
        instruction(give, unknown),
        instruction(equal, _CLONE[machine], 0, 4),
        instruction(load, first),
        instruction(bit, _CLONE_THREAD, 0, 1),
        instruction(give, allow),
        instruction(give, refuse),
        *(step for number in refused for step in (
            instruction(equal, number, 0, 1), instruction(give, refuse)
        )),
        *(step for number in _OURS_ALONE[machine].values() for step in (
            instruction(equal, number, 0, 5), instruction(load, first),
            instruction(equal, 0, 2, 0), instruction(equal, os.getpid(), 1, 0),
            instruction(give, refuse), instruction(give, allow),
        )),
        instruction(give, allow),
    ]  # fmt: skip
