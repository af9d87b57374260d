"""A server that stands in for Qdrant: its own gRPC services on a real port, and a line that can be cut.

It answers sensibly until `faults` holds a step; every call then takes one. `faults_at` has steps for the calls of one
method. A step is given the request, the context and what computes the sensible answer, and returns what is sent, or
ends the call. Calls reach the server through a line of plain TCP: `refuse` stops listening, `cut` ends every
connection, `listen` listens again on the same port.

The statuses are those of Qdrant's own source: lib/storage/src/content_manager/conversions.rs and src/tonic/auth.rs.
"""

import asyncio
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from qdrant_client import grpc as pb
from qdrant_engine import Refused, Shelf

from cli.addresses import free_ports

CODE = grpc.StatusCode
Answer = Callable[[], Any]
Step = Callable[[Any, Any, Answer], Awaitable[Any]]


# --- steps ---------------------------------------------------------------------------------------------------------


def fails(code: grpc.StatusCode, *trailers: tuple[str, str], message: str = "the server's own words") -> Step:
    """End the call with a status before anything is done."""

    async def step(request: Any, context: Any, answer: Answer) -> Any:
        await context.abort(code, message, trailers)

    return step


def altered(change: Callable[[Any], Any]) -> Step:
    """Answer, but changed in place."""

    async def step(request: Any, context: Any, answer: Answer) -> Any:
        made = answer()
        change(made)
        return made

    return step


def lost(code: grpc.StatusCode) -> Step:
    """Do what is asked for, and end the call with a status all the same."""

    async def step(request: Any, context: Any, answer: Answer) -> Any:
        answer()
        await context.abort(code, "the server's own words")

    return step


class Late:
    """A step that answers once it is released."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, request: Any, context: Any, answer: Answer) -> Any:
        self.begun.set()
        await self.released.wait()
        return answer()


class Unheard:
    """A step that never answers, or ends with a status, and does what is asked for once it is released all the same."""

    def __init__(self, code: grpc.StatusCode | None = None) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        self.done = asyncio.Event()
        self._code = code

    async def __call__(self, request: Any, context: Any, answer: Answer) -> Any:
        self._work = asyncio.create_task(self._do(answer))
        self.begun.set()
        if self._code is not None:
            await context.abort(self._code, "the server's own words")
        await asyncio.Event().wait()

    async def _do(self, answer: Answer) -> None:
        await self.released.wait()
        answer()
        self.done.set()


# --- server --------------------------------------------------------------------------------------------------------


class StandIn:
    """The services."""

    def __init__(self, root: Path) -> None:
        self.faults: deque[Step] = deque()
        self.faults_at: defaultdict[str, deque[Step]] = defaultdict(deque)
        """By method, as `calls` names it; these come first."""
        self.calls: list[tuple[str, Any]] = []
        """Method and request of every call."""
        self.timeouts: list[float | None] = []
        """Seconds left of every call when it arrived."""
        self.version = "1.19.0"
        self.title = "qdrant - vector search engine"
        self.api_key: str | None = None
        self.keeps_metadata = True
        self.update_status = pb.UpdateStatus.Completed
        self.shelves: dict[str, Shelf] = {}
        self.aliases: dict[str, str] = {}
        self.line = Line()
        self._root = root
        self._made = 0

    @property
    def port(self) -> int:
        """Where to call."""
        return self.line.port

    def drop_connection(self) -> Step:
        """Return a step that cuts the line under the call."""

        async def step(request: Any, context: Any, answer: Answer) -> Any:
            self.line.cut()
            await asyncio.Event().wait()

        return step

    def methods(self, service: str) -> dict[str, Callable[[Any], Any]]:
        """Return what answers each method of a service."""
        return {
            "Qdrant": {"HealthCheck": self._health},
            "Collections": {
                "Get": self._info,
                "List": self._list,
                "Create": self._create,
                "Delete": self._drop,
                "Update": self._update,
                "UpdateAliases": self._change_aliases,
                "ListAliases": self._list_aliases,
            },
            "Points": {
                "CreateFieldIndex": self._index,
                "Scroll": lambda request: self._shelf(request).scroll(request),
                "Upsert": self._upsert,
                "Delete": self._delete,
                "Get": lambda request: pb.GetResponse(result=self._shelf(request).get(request), time=1e-4),
                "Count": lambda request: pb.CountResponse(
                    result=pb.CountResult(count=self._shelf(request).count(request))
                ),
                "Query": lambda request: pb.QueryResponse(result=self._shelf(request).query(request), time=2e-4),
            },
        }[service]

    async def serve(self, method: str, answer: Callable[[Any], Any], request: Any, context: Any) -> Any:
        """Answer one call."""
        self.calls.append((method, request))
        self.timeouts.append(context.time_remaining())
        if self.api_key is not None and dict(context.invocation_metadata()).get("api-key") != self.api_key:
            await context.abort(CODE.UNAUTHENTICATED, "Invalid API key or JWT")
        try:
            if faults := self.faults_at[method] or self.faults:
                return await faults.popleft()(request, context, lambda: answer(request))
            return answer(request)
        except KeyError:
            await context.abort(CODE.NOT_FOUND, "Not found: Collection doesn't exist!")
        except FileExistsError:
            await context.abort(CODE.ALREADY_EXISTS, "Collection already exists!")
        except Refused as error:
            await context.abort(CODE.INVALID_ARGUMENT, str(error))

    def close(self) -> None:
        """Close every collection."""
        for shelf in self.shelves.values():
            shelf.close()

    def _shelf(self, request: Any) -> Shelf:
        return self.shelves[self.aliases.get(request.collection_name, request.collection_name)]

    def _health(self, request: Any) -> Any:
        return pb.HealthCheckReply(title=self.title, version=self.version)

    def _info(self, request: Any) -> Any:
        shelf = self._shelf(request)
        result = pb.CollectionInfo(status=shelf.status, config=shelf.config, points_count=shelf.count())
        return pb.GetCollectionInfoResponse(result=result)

    def _list(self, request: Any) -> Any:
        return pb.ListCollectionsResponse(collections=[pb.CollectionDescription(name=one) for one in self.shelves])

    def _create(self, request: Any) -> Any:
        if request.collection_name in self.shelves:
            raise FileExistsError
        if request.collection_name in self.aliases:
            raise Refused("Wrong input: Can't create collection. Alias with the same name already exists")
        if not self.keeps_metadata:
            request.ClearField("metadata")
        self._made += 1
        self.shelves[request.collection_name] = Shelf(self._root / str(self._made), request)
        return pb.CollectionOperationResponse(result=True)

    def _drop(self, request: Any) -> Any:
        shelf = self.shelves.pop(request.collection_name, None)
        if shelf is not None:
            shelf.close()
        gone = [alias for alias, target in self.aliases.items() if target == request.collection_name]
        for alias in gone:
            del self.aliases[alias]
        return pb.CollectionOperationResponse(result=shelf is not None)

    def _update(self, request: Any) -> Any:
        for key, value in request.metadata.items():
            self._shelf(request).config.metadata[key].CopyFrom(value)
        return pb.CollectionOperationResponse(result=True)

    def _change_aliases(self, request: Any) -> Any:
        aliases = dict(self.aliases)
        for action in request.actions:
            if action.HasField("delete_alias"):
                aliases.pop(action.delete_alias.alias_name, None)
                continue
            made = action.create_alias
            if made.alias_name in self.shelves:
                raise Refused("Wrong input: Collection with the same name already exists")
            aliases[made.alias_name] = self.shelves[made.collection_name] and made.collection_name
        self.aliases = aliases
        return pb.CollectionOperationResponse(result=True)

    def _list_aliases(self, request: Any) -> Any:
        described = [pb.AliasDescription(alias_name=one, collection_name=to) for one, to in self.aliases.items()]
        return pb.ListAliasesResponse(aliases=described)

    def _index(self, request: Any) -> Any:
        self._shelf(request).index(request)
        return self._updated()

    def _upsert(self, request: Any) -> Any:
        self._shelf(request).upsert(request.points)
        return self._updated()

    def _delete(self, request: Any) -> Any:
        self._shelf(request).delete(request.points.points.ids)
        return self._updated()

    def _updated(self) -> Any:
        return pb.PointsOperationResponse(result=pb.UpdateResult(operation_id=1, status=self.update_status))


class Line:
    """Plain TCP between the port that is called and the server."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)  # kept: nobody else listens there meanwhile
        self._target = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self, target: int | None = None) -> None:
        """Listen, again on the same port."""
        self._target = target or self._target
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def refuse(self) -> None:
        """Stop listening and cut what is connected."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """End every connection at once."""
        for writer in self._open:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        both = {writer, far_writer}
        self._open |= both
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self._open -= both


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


@asynccontextmanager
async def stand_in(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[StandIn]:
    """Run one on a free port of loopback, its collections in a directory that goes with it; in the clear, or not."""
    with tempfile.TemporaryDirectory() as root:
        made = StandIn(Path(root))
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
        _register(server, made, "Qdrant", pb.QdrantServicer, pb.add_QdrantServicer_to_server)
        _register(server, made, "Collections", pb.CollectionsServicer, pb.add_CollectionsServicer_to_server)
        _register(server, made, "Points", pb.PointsServicer, pb.add_PointsServicer_to_server)
        address = "127.0.0.1:0"
        secure = credentials is not None
        target = server.add_secure_port(address, credentials) if secure else server.add_insecure_port(address)
        await server.start()
        await made.line.listen(target)
        try:
            yield made
        finally:
            await made.line.refuse()
            await server.stop(0)
            made.close()


def _register(server: grpc.aio.Server, made: StandIn, service: str, kind: Any, add: Any) -> None:
    """Add a service; the methods that are not ours stay UNIMPLEMENTED."""

    def handler(method: str, answer: Callable[[Any], Any]) -> Any:
        async def call(_self: Any, request: Any, context: Any) -> Any:
            return await made.serve(f"{service}.{method}", answer, request, context)

        return call

    handlers = {method: handler(method, answer) for method, answer in made.methods(service).items()}
    add(type(service, (kind,), handlers)(), server)
