"""The documents that describe this gateway to programs, each made when it is first asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from anyio import to_thread
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from gateway.web.health import ALIVE, READY
from gateway.web.published.openapi import openapi
from gateway.web.published.operations import Answer, Described, Operation
from gateway.web.webhooks import OPERATIONS

Document = Callable[[], Mapping[str, object]]
SUBJECTS = {
    "/openapi.json": "This API",
    "/asyncapi.json": "The WebSocket and the events of runs",
    "/config.schema.json": "The configuration file",
}


def operation(path: str) -> Operation:
    answer = Answer(200, "The document.", dict[str, object])
    return Operation("GET", path, f"{SUBJECTS[path]}, as a document for programs.", (answer,))


@dataclass(frozen=True, slots=True)
class DocumentsApi:
    """`documents` are by path. To make one may take a tenth of a second, so it is done in a thread."""

    documents: Mapping[str, Document]
    _made: dict[str, bytes] = field(default_factory=dict)

    def routes(self) -> Sequence[Described]:
        return [Described(operation(path), self.document) for path in self.documents]

    async def document(self, request: Request) -> Response:
        path = request.url.path
        if path not in self._made:
            self._made[path] = await to_thread.run_sync(lambda: to_json(self.documents[path]()))
        return Response(self._made[path], media_type="application/json")


def documented(
    routes: Sequence[Described], version: str, others: Mapping[str, Document]
) -> Sequence[Described]:
    """The routes, and those of the document that describes all of them, and of other documents."""
    own = [operation(path) for path in ("/openapi.json", *others)]
    operations = [ALIVE, READY, *OPERATIONS, *(route.operation for route in routes), *own]
    api = DocumentsApi({"/openapi.json": lambda: openapi(operations, version), **others})
    return (*routes, *api.routes())
