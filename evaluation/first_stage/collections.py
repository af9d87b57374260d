"""The collections that the study searches: documents are encoded once, and kept in several ways."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.first_stage.exact import Vectors, vectors_of
from evaluation.first_stage.options import Kept
from evaluation.phases.corpus import INDEX_TIMEOUT_S, drop_collection, make_collection, store_documents
from evaluation.plan import Plan
from evaluation.system import CALL_TIMEOUT_S, System
from retrieval.gateway.v1 import gateway_pb2 as pb

NAME_ROOM = 100
"""Characters of a collection's name before what says how it is kept; a name has at most 128."""

Words = Callable[[Kept], pb.LexicalParameters | None]
"""How words are indexed in a collection that is kept so, their average number counted; None where that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collections:
    """What was made."""

    names: Mapping[Kept, str]
    disk_bytes: Mapping[Kept, int]
    vectors: Vectors
    truncated_count: int
    """Documents over the encoder's limit, of which only the beginning was encoded."""


def name_of(plan: Plan, kept: Kept) -> str:
    """Name a collection of the study."""
    return f"{plan.collection_name[:NAME_ROOM]}-{kept.value}"


async def make(plan: Plan, system: System, wanted: Mapping[Kept, pb.LexicalParameters | None]) -> Collections:
    """Make the collections anew.

    Only `Kept.WORDS` and `Kept.SENTENCES` are encoded; the others are the first one's export, stored again.

    Args:
        plan: The run.
        system: The servers.
        wanted: How words are indexed in each; `Kept.WORDS` is always made and must be there.
    """
    names = {kept: name_of(plan, kept) for kept in wanted}
    truncated = await _encoded(plan, system, names[Kept.WORDS], wanted[Kept.WORDS])
    header, batches = await _exported(system, names[Kept.WORDS])
    for kept, lexical in wanted.items():
        if kept is Kept.SENTENCES:
            await make_collection(system, names[kept], drop=True)
            await store_documents(plan, system, names[kept], per_sentence=True)
        elif kept is not Kept.WORDS:
            await _imported(system, names[kept], header, batches, lexical)
    return Collections(
        names=names,
        disk_bytes={kept: await _disk_bytes(system, name) for kept, name in names.items()},
        vectors=vectors_of(batches),
        truncated_count=truncated,
    )


async def _encoded(plan: Plan, system: System, name: str, lexical: pb.LexicalParameters | None) -> int:
    await make_collection(system, name, drop=True, parameters=pb.CollectionParameters(lexical=lexical))
    return await store_documents(plan, system, name)


async def _exported(system: System, name: str) -> tuple[pb.CollectionHeader, Sequence[pb.DocumentBatch]]:
    header, batches = pb.CollectionHeader(), list[pb.DocumentBatch]()
    request = pb.ExportCollectionRequest(collection=name)
    async for message in system.collections.ExportCollection(request, timeout=INDEX_TIMEOUT_S):
        match message.WhichOneof("part"):
            case "header":
                header = message.header
            case "documents":
                batches.append(message.documents)
    return header, batches


async def _imported(
    system: System,
    name: str,
    header: pb.CollectionHeader,
    batches: Sequence[pb.DocumentBatch],
    lexical: pb.LexicalParameters | None,
) -> None:
    parameters = pb.CollectionParameters()
    parameters.CopyFrom(header.parameters)
    parameters.ClearField("lexical")
    if lexical is not None:
        parameters.lexical.CopyFrom(lexical)

    async def messages() -> AsyncIterator[pb.ImportCollectionRequest]:
        yield pb.ImportCollectionRequest(start=pb.ImportStart(collection=name, header=header, parameters=parameters))
        for batch in batches:
            yield pb.ImportCollectionRequest(documents=batch)
        count = sum(len(batch.documents) for batch in batches)
        yield pb.ImportCollectionRequest(footer=pb.CollectionFooter(document_count=count))

    await drop_collection(system, name)
    await system.collections.ImportCollection(messages(), timeout=INDEX_TIMEOUT_S)


async def _disk_bytes(system: System, name: str) -> int:
    describe = pb.DescribeCollectionRequest(collection=name)
    answer = await system.collections.DescribeCollection(describe, timeout=CALL_TIMEOUT_S)
    return answer.collection.disk_bytes
