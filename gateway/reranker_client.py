"""The reranker port over gRPC."""

import math
from collections.abc import Sequence

import grpc

from gateway.guard import Guard
from gateway.ports import Model, Reranked, Scored, ServerTime
from retrieval.reranker.v1 import reranker_pb2 as pb
from retrieval.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import InferenceFailed, InvalidRequest
from serving.timing import from_duration

SERVICE = pb.DESCRIPTOR.services_by_name["RerankerService"].full_name
PEER = "reranker"
PRIORITIES = {Priority.INTERACTIVE: pb.PRIORITY_INTERACTIVE, Priority.BULK: pb.PRIORITY_BULK}
# A stored text may be larger than what the reranker accepts. 512 tokens never reach past this many bytes, since no
# piece of the vocabulary is longer than 16 characters of at most 4 bytes.
MAX_PASSAGE_BYTES = 60_000


class RerankerClient:
    """Calls a reranker server.

    Args:
        channel: To the servers.
        guard: What every call passes; default is one with the usual policy.
    """

    def __init__(self, channel: grpc.aio.Channel, guard: Guard | None = None) -> None:
        self._stub = RerankerServiceStub(channel)
        self._guard = guard or Guard(PEER)

    async def rerank(
        self, query: str, passages: Sequence[str], *, priority: Priority = Priority.INTERACTIVE, deadline: Deadline
    ) -> Reranked:
        """Score every passage; pairs over the limit are cut longest first and reported."""
        bare = [passage.lstrip() for passage in passages]
        cut = [_cut(passage) for passage in bare]
        request = pb.RerankRequest(
            query=query,
            candidates=[pb.Candidate(id=str(index), text=text) for index, text in enumerate(cut)],
            truncation=pb.TRUNCATION_LONGEST_FIRST,
            skip_blank=True,
            priority=PRIORITIES[priority],
        )
        response = await self._call(request, deadline)
        shortened = [len(text) < len(passage) for text, passage in zip(cut, bare, strict=True)]
        return Reranked(
            scores=_by_position(response, shortened),
            model=Model(
                id=response.model.id,
                revision=response.model.revision,
                digest=response.model.digest,
                precision=response.model.precision,
                device=response.model.device,
            ),
            time=ServerTime(
                queue=from_duration(response.timings.queue),
                tokenize=from_duration(response.timings.tokenize),
                compute=from_duration(response.timings.compute),
            ),
        )

    async def _call(self, request: pb.RerankRequest, deadline: Deadline) -> pb.RerankResponse:
        timeout = deadline.require("rerank")
        try:
            return await self._guard.ask(self._stub.Rerank, request, timeout_s=timeout)
        except InvalidRequest as error:
            if error.field == "query":
                raise
            # The candidates are ours: our caller never saw them.
            raise InferenceFailed("RERANKER_FAILED", f"the reranker refuses {error.field}: {error.reason}") from error


def _cut(passage: str) -> str:
    data = passage.encode("utf-8", "replace")
    return passage if len(data) <= MAX_PASSAGE_BYTES else data[:MAX_PASSAGE_BYTES].decode("utf-8", "ignore")


def _by_position(response: pb.RerankResponse, shortened: Sequence[bool]) -> list[Scored | None]:
    """Put the ranking back into the order of the passages; every position has to occur exactly once."""
    positions = [entry.index for entry in response.ranked] + list(response.skipped_indices)
    if sorted(positions) != list(range(len(shortened))):
        raise InferenceFailed("RERANKER_FAILED", f"{len(shortened)} passages sent, positions {positions} came back")
    if not all(math.isfinite(entry.logit) and math.isfinite(entry.probability) for entry in response.ranked):
        raise InferenceFailed("RERANKER_FAILED", "a score is not finite")
    scores: list[Scored | None] = [None] * len(shortened)
    for entry in response.ranked:
        scores[entry.index] = Scored(
            logit=entry.logit,
            probability=entry.probability,
            truncated=entry.truncated or shortened[entry.index],
        )
    return scores
