"""The documents that describe this gateway to programs, each made when it is first asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from anyio import to_thread
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

Document = Callable[[], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class DocumentsApi:
    """`documents` are by path. To make one may take a tenth of a second, so it is done in a thread."""

    documents: Mapping[str, Document]
    _made: dict[str, bytes] = field(default_factory=dict)

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(path, self.document, methods=["GET"]) for path in self.documents]

    async def document(self, request: Request) -> Response:
        path = request.url.path
        if path not in self._made:
            self._made[path] = await to_thread.run_sync(lambda: to_json(self.documents[path]()))
        return Response(self._made[path], media_type="application/json")
