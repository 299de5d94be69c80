"""The scripted model server, for clients that die in the middle of its answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream

from tests.fakes.model_server import Asked, ModelServer, Reply


class PatientServer(ModelServer):
    """A client that is killed while it is spoken to harms nobody else."""

    async def handle(self, stream: SocketStream) -> None:
        try:
            await super().handle(stream)
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass  # killed


@asynccontextmanager
async def patient_server(script: Callable[[Asked], Reply]) -> AsyncIterator[PatientServer]:
    """Serves on loopback until the block is left."""
    server = PatientServer(script)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.handle)
        yield server
        group.cancel_scope.cancel()
