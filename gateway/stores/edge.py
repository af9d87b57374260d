"""The vector store that needs no server: qdrant-edge in a process of our own, its data in a directory.

The engine does one call at a time. Its binding keeps Python's global lock during every call, so that more threads
would be no faster, and with one every operation is whole as the others see it. For the same reason the engine runs in
another process by default: in a thread of this one the event loop would stand still with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from gateway.filters import Filter
from gateway.parameters import DEFAULT_PARAMETERS, CollectionParameters
from gateway.ports import (
    Collection,
    Cursor,
    Document,
    DocumentId,
    Found,
    ListQuery,
    Model,
    Page,
    RankedList,
    ServerTime,
    Vector,
)
from gateway.precisions import note_precision
from gateway.stores.edge_process import CLOSING_S, EdgeProcess
from gateway.stores.edge_root import EdgeRoot
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, Misconfigured, NotReady

T = TypeVar("T")

PATIENCE_S = 5.0
RETRY_S = 0.1


class EdgeStore:
    """A `gateway.ports.VectorStore`; made by `open` inside the running loop.

    A call that overruns its deadline is answered at once and goes on in the engine; one that still waits for its turn
    by then is never started.
    """

    name = "qdrant-edge"

    def __init__(self, root: EdgeRoot | EdgeProcess, thread: ThreadPoolExecutor) -> None:
        self._root = root
        self._thread = thread
        self._closed = False

    @classmethod
    async def open(
        cls, root: Path, *, in_process: bool = False, patience_s: float = PATIENCE_S, closing_s: float = CLOSING_S
    ) -> Self:
        """Open the directory and every collection in it.

        Args:
            root: The directory; made where there is none.
            in_process: Whether the engine runs in this process: starts 0.3 s sooner, and stalls the event loop
                while it works (1.5 ms for a search of 20,000 documents of 384 dimensions, 3 to 180 ms for a write).
            patience_s: How long to wait for another process to let go of the directory. A gateway that was killed
                leaves its engine's process a moment to write everything down.
            closing_s: How long the engine's process may take to answer what was accepted, and then to write everything
                down, before `aclose` kills it.

        Raises:
            Misconfigured: Another process holds it, it cannot be written, or a collection cannot be opened.
        """
        patience = Deadline.after(patience_s)
        with ExitStack() as undo:
            thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edge-store")
            undo.callback(thread.shutdown, wait=False)
            while True:
                try:
                    opened = await (
                        _run(thread, EdgeRoot.open, root) if in_process else EdgeProcess.open(root, closing_s)
                    )
                    break
                except Misconfigured as error:
                    if error.reason != "STORE_LOCKED" or patience.spent():
                        raise
                await asyncio.sleep(RETRY_S)
            undo.pop_all()
            return cls(opened, thread)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish what was accepted, write everything down and let go of the directory; again is no error."""
        if self._closed:
            return
        self._closed = True
        try:
            if isinstance(self._root, EdgeProcess):
                await self._root.close()
            else:
                await _run(self._thread, self._root.close)
        finally:
            self._thread.shutdown(wait=False)

    async def create(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        *,
        dimension: int,
        encoder: Model,
        passage_prefix: str = "",
        parameters: CollectionParameters = DEFAULT_PARAMETERS,
        hidden: bool = False,
        incarnation: str = "",
        deadline: Deadline,
    ) -> Collection:
        """Create an empty collection; it remembers the encoder without its device.

        Searches compare every vector, so that what concerns an approximate index is kept and not used.
        """
        made, _ = await self._call(
            deadline,
            "create",
            name,
            dimension=dimension,
            encoder=encoder,
            passage_prefix=passage_prefix,
            parameters=parameters,
            hidden=hidden,
            incarnation=incarnation,
        )
        return cast("Collection", made)

    async def reveal(self, name: str, *, incarnation: str, document_count: int, deadline: Deadline) -> Collection:
        """Let a hidden collection be found, if it holds so many documents."""
        revealed, _ = await self._call(deadline, "reveal", name, incarnation=incarnation, document_count=document_count)
        return cast("Collection", revealed)

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection, its documents counted exactly."""
        described, _ = await self._call(deadline, "describe", name)
        return cast("Collection", described)

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections, by name."""
        listed, _ = await self._call(deadline, "list")
        return cast("Sequence[Collection]", listed)

    async def drop(
        self, name: str, *, with_aliases: bool = False, incarnation: str | None = None, deadline: Deadline
    ) -> None:
        """Delete a collection, its documents and its aliases."""
        await self._call(deadline, "drop", name, with_aliases=with_aliases, incarnation=incarnation)

    async def assign_alias(self, alias: str, collection: str, *, deadline: Deadline) -> None:
        """Point an alias at a collection, durably."""
        await self._call(deadline, "assign_alias", alias, collection)

    async def delete_alias(self, alias: str, *, deadline: Deadline) -> None:
        """Delete an alias, durably."""
        await self._call(deadline, "delete_alias", alias)

    async def scan(
        self,
        name: str,
        *,
        after: Cursor | None,
        limit: int,
        filter: Filter | None = None,  # noqa: A002 - the port's word
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> Page:
        """Return up to `limit` documents under the filter from a cursor on, numbers first."""
        page, _ = await self._call(
            deadline, "scan", name, after=after, limit=limit, wanted=filter, incarnation=incarnation
        )
        return cast("Page", page)

    async def count(self, name: str, *, filter: Filter | None = None, deadline: Deadline) -> int:  # noqa: A002
        """Count the documents under the filter, exactly."""
        count, _ = await self._call(deadline, "count", name, wanted=filter)
        return cast("int", count)

    async def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        *,
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> None:
        """Store documents durably, all or none; of two with one id the later stays."""
        await self._call(deadline, "upsert", name, documents, vectors, incarnation=incarnation)

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents durably; their space is won back when the store is next opened."""
        await self._call(deadline, "delete", name, ids)

    async def get(
        self, name: str, ids: Sequence[DocumentId], *, with_parent_texts: bool = False, deadline: Deadline
    ) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        documents, _ = await self._call(deadline, "get", name, ids, with_parent_texts=with_parent_texts)
        return cast("Sequence[Document]", documents)

    async def search(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        queries: Sequence[ListQuery],
        *,
        encoder: Model | None,
        limit: int,
        filter: Filter | None,  # noqa: A002 - the port's word
        corpus: Filter | None = None,
        payload_fields: Sequence[str],
        with_vectors: bool = False,
        deadline: Deadline,
    ) -> Found:
        """Return for each query the `limit` best documents under the filter, one query after the other."""
        (found, collection, made_with), queue = await self._call(
            deadline,
            "search",
            name,
            queries,
            encoder=encoder,
            limit=limit,
            wanted=filter,
            corpus=corpus,
            payload_fields=payload_fields,
            with_vectors=with_vectors,
        )
        if encoder is not None:
            note_precision(collection, made_with, encoder)
        lists = cast("Sequence[RankedList]", found)
        spent = ServerTime(queue=queue, compute=sum(one.compute for one in lists))
        return Found(lists=lists, collection=collection, time=spent)

    async def _call(self, deadline: Deadline, operation: str, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        """Run one operation; what it returns, and the nanoseconds that it waited for its turn."""
        if self._closed:
            raise NotReady("DRAINING", "the vector store is closed", stage=operation)
        left = deadline.require(operation)
        try:
            async with asyncio.timeout(left):
                if isinstance(self._root, EdgeProcess):
                    return await self._root.call(deadline, operation, *args, **kwargs)
                return await _run(self._thread, _timed, self._root, time.monotonic_ns(), operation, args, kwargs)
        except TimeoutError as error:
            raise DeadlineSpent("DEADLINE_SPENT", f"no time left for {operation}", stage=operation) from error


def _run(thread: ThreadPoolExecutor, work: Callable[..., T], *args: Any) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(thread, work, *args)


def _timed(
    root: EdgeRoot, submitted: int, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, int]:
    queue = time.monotonic_ns() - submitted
    return root.call(operation, *args, **kwargs), queue
