"""The vector store that needs no server: qdrant-edge in this process, its data in a directory.

One thread does all the work. The engine's binding keeps Python's global lock during every call (measured: another
thread stood still for 11 of the 16 ms of a query), so that more threads would be no faster; and with one, every
operation is whole as the others see it. What remains is that the event loop stands still as well while the engine
works: 1.5 ms for a search of 20,000 documents of 384 dimensions. Larger collections belong on a Qdrant server.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from gateway.ports import Collection, Document, DocumentId, Filter, Found, Model, ServerTime, Vector
from gateway.stores.edge_root import EdgeRoot
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, NotReady

Result = TypeVar("Result")


class EdgeStore:
    """A `gateway.ports.VectorStore`; made by `open` inside the running loop.

    A call that overruns its deadline is answered at once and goes on in the thread; one that still waits for the
    thread by then is never started.
    """

    name = "qdrant-edge"

    def __init__(self, root: EdgeRoot, thread: ThreadPoolExecutor) -> None:
        self._root = root
        self._thread = thread
        self._closed = False

    @classmethod
    async def open(cls, root: Path) -> Self:
        """Open the directory and every collection in it.

        Raises:
            Misconfigured: Another process holds it, it cannot be written, or a collection cannot be opened.
        """
        with ExitStack() as undo:
            thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edge-store")
            undo.callback(thread.shutdown, wait=False)
            opened = await asyncio.get_running_loop().run_in_executor(thread, EdgeRoot.open, root)
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
            await asyncio.get_running_loop().run_in_executor(self._thread, self._root.close)
        finally:
            self._thread.shutdown(wait=False)

    async def create(self, name: str, *, dimension: int, encoder: Model, deadline: Deadline) -> Collection:
        """Create an empty collection; it remembers the encoder without its device."""
        return await self._run(
            "create", deadline, lambda: self._root.create(name, dimension=dimension, encoder=encoder)
        )

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection, its documents counted exactly."""
        return await self._run("describe", deadline, lambda: self._root.collection(name).describe())

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections, by name."""
        return await self._run("list", deadline, self._root.list)

    async def drop(self, name: str, *, deadline: Deadline) -> None:
        """Delete a collection and its documents."""
        await self._run("drop", deadline, lambda: self._root.drop(name))

    async def upsert(
        self, name: str, documents: Sequence[Document], vectors: Sequence[Vector], *, deadline: Deadline
    ) -> None:
        """Store documents durably, all or none; of two with one id the later stays."""
        await self._run("upsert", deadline, lambda: self._root.collection(name).upsert(documents, vectors))

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents durably; their space is won back when the store is next opened."""
        await self._run("delete", deadline, lambda: self._root.collection(name).delete(ids))

    async def get(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        return await self._run("get", deadline, lambda: self._root.collection(name).get(ids))

    async def search(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        vector: Vector,
        *,
        encoder: Model,
        pool_size: int,
        filter: Filter | None,  # noqa: A002 - the field's word
        payload_fields: Sequence[str],
        deadline: Deadline,
    ) -> Found:
        """Return the `pool_size` nearest documents under the filter, compared one by one."""
        submitted = time.perf_counter_ns()

        def work() -> Found:
            queue = time.perf_counter_ns() - submitted
            collection = self._root.collection(name)
            collection.require_encoder(encoder)
            pool, compute = collection.search(vector, pool_size=pool_size, wanted=filter, payload_fields=payload_fields)
            return Found(candidates=pool, time=ServerTime(queue=queue, compute=compute))

        return await self._run("search", deadline, work)

    async def _run(self, stage: str, deadline: Deadline, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise NotReady("DRAINING", "the vector store is closed", stage=stage)
        left = deadline.require(stage)
        try:
            async with asyncio.timeout(left):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError as error:
            raise DeadlineSpent("DEADLINE_SPENT", f"no time left for {stage}", stage=stage) from error
