"""prepare and index: the data set is what it says, and every document of it is in a collection."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence

import grpc

from evaluation import records
from evaluation.datasets.model import Document
from evaluation.files import read, require_same, write
from evaluation.plan import Plan
from evaluation.records import Indexed, Prepared
from evaluation.system import CALL_TIMEOUT_S, System, id_message, model_used
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import AlreadyExists, Misconfigured

MESSAGE_DOCUMENTS = 32
INDEX_TIMEOUT_S = 3_600.0


def prepare(plan: Plan) -> Prepared:
    """Write prepared.json."""
    prepared = Prepared(
        provenance=plan.provenance(),
        languages=dict(sorted(Counter(question.lang for question in plan.dataset.questions).items())),
        unknown_relevant_count=plan.dataset.unknown_relevant_count,
    )
    write(prepared, plan.outputs / records.PREPARED)
    return prepared


def require_corpus(plan: Plan, found: records.Record, name: str, phase: str) -> None:
    """Refuse a file that was made of another data set or another passage rule than the one at hand.

    Raises:
        NotTogether: It was.
    """
    todo = f"run `twostage evaluate {phase}` again"
    theirs = found.provenance
    require_same(f"{name} is of another corpus", theirs.corpus.digest, plan.corpus.digest, todo)
    passages = theirs.configuration.passage, plan.configuration.passage
    require_same(f"{name} has other passages", *passages, todo)


async def index(plan: Plan, system: System, *, recreate: bool = False) -> Indexed:
    """Make the collection anew, store every document, count, and write indexed.json.

    Args:
        plan: The run.
        system: The servers.
        recreate: Whether a collection under a name of the user's own may be dropped; one of our own naming always is.

    Raises:
        AlreadyExists: The user's collection exists.
        Misconfigured: A document was refused, or not every one is there afterwards.
    """
    require_corpus(plan, read(Prepared, plan.outputs / records.PREPARED, "prepare"), records.PREPARED, "prepare")
    begun = time.perf_counter()
    await make_collection(system, plan.collection_name, drop=recreate or not plan.collection)
    truncated = await store_documents(plan, system, plan.collection_name)
    seconds = time.perf_counter() - begun
    indexed = await _counted(plan, system, truncated, seconds)
    write(indexed, plan.outputs / records.INDEXED)
    return indexed


async def make_collection(
    system: System, name: str, *, drop: bool, parameters: pb.CollectionParameters | None = None
) -> None:
    """Make an empty collection.

    Args:
        system: The servers.
        name: Its name.
        drop: Whether one of that name may be dropped first.
        parameters: How it is kept; None is every default.

    Raises:
        AlreadyExists: It exists and must not be dropped.
    """
    await drop_collection(system, name, allowed=drop)
    request = pb.CreateCollectionRequest(collection=name, parameters=parameters)
    await system.collections.CreateCollection(request, timeout=CALL_TIMEOUT_S)


async def drop_collection(system: System, name: str, *, allowed: bool = True) -> None:
    """Drop a collection where there is one.

    Raises:
        AlreadyExists: There is one, and that is not allowed.
    """
    try:
        await system.collections.DescribeCollection(
            pb.DescribeCollectionRequest(collection=name), timeout=CALL_TIMEOUT_S
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return
    if not allowed:
        raise AlreadyExists("COLLECTION_EXISTS", f"collection {name} exists; --recreate drops it first")
    request = pb.DropCollectionRequest(collection=name, drop_aliases=True)
    await system.collections.DropCollection(request, timeout=CALL_TIMEOUT_S)


async def store_documents(plan: Plan, system: System, name: str, *, per_sentence: bool = False) -> int:
    """Store every document; return how many were cut by the encoder.

    Args:
        plan: The run.
        system: The servers.
        name: Of the collection.
        per_sentence: Whether every sentence is stored as a part of its own, and none is cut.

    Raises:
        Misconfigured: A document was refused.
    """
    truncated = 0
    messages = list(_messages(plan, name, per_sentence=per_sentence))
    async for answer in system.documents.UpsertDocuments(iter(messages), timeout=INDEX_TIMEOUT_S):
        if answer.WhichOneof("outcome") != "stored":
            failure = answer.failure
            raise Misconfigured(
                failure.reason or "DOCUMENTS_REFUSED", f"message {answer.sequence} of documents: {failure.message}"
            )
        truncated += answer.stored.truncated_count
    return truncated


def _messages(plan: Plan, name: str, *, per_sentence: bool) -> Iterator[pb.UpsertDocumentsRequest]:
    documents = plan.dataset.documents
    for number, first in enumerate(range(0, len(documents), MESSAGE_DOCUMENTS), start=1):
        yield pb.UpsertDocumentsRequest(
            sequence=number,
            collection=name,
            documents=_converted(plan, documents[first : first + MESSAGE_DOCUMENTS]),
            truncate=not per_sentence,
            overlong=pb.OVERLONG_SPLIT if per_sentence else pb.OVERLONG_UNSPECIFIED,
            part_per_sentence=per_sentence,
        )


def _converted(plan: Plan, documents: Sequence[Document]) -> list[pb.Document]:
    return [pb.Document(id=id_message(document.id), text=plan.passage(document)) for document in documents]


async def _counted(plan: Plan, system: System, truncated: int, seconds: float) -> Indexed:
    describe = pb.DescribeCollectionRequest(collection=plan.collection_name)
    collection = (await system.collections.DescribeCollection(describe, timeout=CALL_TIMEOUT_S)).collection
    wanted = len(plan.dataset.documents)
    if collection.document_count != wanted:
        raise Misconfigured(
            "DOCUMENTS_MISSING", f"{collection.document_count} of {wanted} documents are in {collection.name}"
        )
    # Only an answer says on which device the encoder runs.
    probe = pb.SearchRequest(
        query=plan.dataset.questions[0].query, collection=collection.name, pool_size=1, rerank=pb.RERANK_OFF
    )
    answer = await system.search.Search(probe, timeout=CALL_TIMEOUT_S)
    encoder = model_used(answer.provenance.encoder)
    provenance = plan.provenance().model_copy(
        update={"collection": collection.name, "store": answer.provenance.store, "encoder": encoder}
    )
    return Indexed(
        provenance=provenance,
        document_count=wanted,
        dimension=collection.dimension,
        device=encoder.device,
        points_count=collection.document_count,
        truncated_count=truncated,
        seconds=seconds,
    )
