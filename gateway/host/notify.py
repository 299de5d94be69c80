"""Reports the state of the gateway to the service manager: systemd's `sd_notify`, one datagram for each message."""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends messages to the service manager, if there is an `address`. `beat_s` is the interval of the watchdog."""

    address: str = ""
    beat_s: float | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "Notifier":
        """Returns the notifier for NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        address, usec = variables.get("NOTIFY_SOCKET", ""), variables.get("WATCHDOG_USEC", "")
        is_ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        has_watchdog = is_ours and usec.isdecimal() and int(usec) > 0
        return cls(address, int(usec) / MICRO / 2 if address and has_watchdog else None)

    @property
    def restart(self) -> str:
        """The command that restarts the gateway."""
        if self.address:
            return "systemctl restart exogate"
        pid = os.getpid()
        return f"kill {pid} && while kill -0 {pid} 2>&-; do sleep 0.2; done && exogate run"

    def ready(self, status: str) -> None:
        """Reports that the gateway serves, also after each reload."""
        self._send("READY=1", f"STATUS={' '.join(status.split())}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=finishing running turns")

    async def beat(self, clock: Clock, is_well: Callable[[], bool]) -> None:
        """Reports to the watchdog while all is well. A blocked event loop sends no report."""
        while self.beat_s is not None:
            await clock.sleep(self.beat_s)
            if is_well():
                self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self.address:
            return
        # A leading @ means the NUL byte of an abstract socket.
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as datagrams:
                datagrams.settimeout(0)
                datagrams.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log.warning("service_manager_not_told", extra={"why": str(error)})


SILENT = Notifier()
