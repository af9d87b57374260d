"""Writes and reads in the words of Qdrant's gRPC interface."""

import math
from collections.abc import Sequence

import numpy as np
import qdrant_edge as edge
from qdrant_client import grpc as pb

from gateway.ports import Document, Page, Vector
from gateway.stores.lexical import VECTOR_NAME, lexicon
from gateway.stores.point_ids import PointId, to_point_id
from gateway.stores.qdrant_collections import Known
from gateway.stores.qdrant_values import LIMITS, from_pb_id, from_pb_payload, selector, to_pb_id, to_pb_payload
from gateway.stores.records import ALL_FIELDS, stored_payload, to_document, unit_vector
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InferenceFailed, InvalidRequest

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Qdrant's own default limit of a request."""

ORDERING = pb.WriteOrdering(type=pb.WriteOrderingType.Medium)
"""Writes go through one replica that is there, so that all replicas see them in one order."""


def points_of(documents: Sequence[Document], vectors: Sequence[Vector], known: Known) -> Sequence[pb.PointStruct]:
    """Check a whole batch and make its points; of two with one id the later stays.

    Args:
        documents: The documents.
        vectors: float32 [dimension] each.
        known: The collection.

    Raises:
        InvalidRequest: An id or a payload is wrong.
        Misconfigured: `VECTOR_SIZE_MISMATCH`.
        InferenceFailed: A vector is not finite or has no length, or a text is no Unicode.
    """
    words = None if known.parameters.lexical is None else lexicon(known.parameters.lexical)
    points: dict[PointId, pb.PointStruct] = {}
    for index, (document, vector) in enumerate(zip(documents, vectors, strict=True)):
        field = f"documents[{index}]"
        point_id = to_point_id(document.id, field=f"{field}.id")
        payload = stored_payload(document, field=field, limits=LIMITS)
        numbers = unit_vector(vector, known.dimension)
        try:
            points[point_id] = pb.PointStruct(
                id=to_pb_id(point_id),
                payload=to_pb_payload(payload),
                vectors=_vectors(numbers, None if words is None else words.document(document.text)),
            )
        except (TypeError, ValueError) as error:
            raise InferenceFailed(
                "STORE_FAILED", "a document cannot be written down; details are in the log"
            ) from error
    return list(points.values())


def _vectors(numbers: Sequence[float], words: edge.SparseVector | None) -> pb.Vectors:
    dense = pb.Vector(dense=pb.DenseVector(data=numbers))
    if words is None:
        return pb.Vectors(vector=dense)
    return pb.Vectors(vectors=pb.NamedVectors(vectors={"": dense, VECTOR_NAME: pb.Vector(sparse=to_pb_words(words))}))


def to_pb_words(words: edge.SparseVector) -> pb.SparseVector:
    """Return words as they are sent."""
    return pb.SparseVector(indices=words.indices, values=words.values)


def written(name: str, points: Sequence[pb.PointStruct], timeout_s: int) -> pb.UpsertPoints:
    """Return the request that stores points and answers when they are found.

    Raises:
        InvalidRequest: `BATCH_TOO_LARGE`.
    """
    request = pb.UpsertPoints(
        collection_name=name,
        wait=True,
        points=points,
        ordering=ORDERING,
        timeout=timeout_s,
    )
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            "BATCH_TOO_LARGE", f"{size} bytes with their vectors, the limit is {MAX_REQUEST_BYTES}", field="documents"
        )
    return request


def deleted(name: str, point_ids: Sequence[PointId], timeout_s: int) -> pb.DeletePoints:
    """Return the request that deletes points and answers when they are gone."""
    return pb.DeletePoints(
        collection_name=name,
        wait=True,
        points=pb.PointsSelector(points=pb.PointsIdsList(ids=[to_pb_id(one) for one in point_ids])),
        ordering=ORDERING,
        timeout=timeout_s,
    )


def fetched(name: str, point_ids: Sequence[PointId], timeout_s: int, *, with_parent_texts: bool) -> pb.GetPoints:
    """Return the request that reads points by id, without their vectors."""
    everything = pb.WithPayloadSelector(enable=True)
    return pb.GetPoints(
        collection_name=name,
        ids=[to_pb_id(one) for one in dict.fromkeys(point_ids)],
        with_payload=everything if with_parent_texts else selector((ALL_FIELDS,)),
        with_vectors=pb.WithVectorsSelector(enable=False),
        timeout=timeout_s,
    )


def scrolled(name: str, after: PointId | None, limit: int, chosen: pb.Filter | None, timeout_s: int) -> pb.ScrollPoints:
    """Return the request that reads points in the order of their ids, with their vectors."""
    return pb.ScrollPoints(
        collection_name=name,
        filter=chosen,
        offset=None if after is None else to_pb_id(after),
        limit=limit,
        with_payload=pb.WithPayloadSelector(enable=True),
        with_vectors=pb.WithVectorsSelector(enable=True),
        timeout=timeout_s,
    )


def page_of(answer: pb.ScrollResponse) -> Page:
    """Read the answer to that.

    Raises:
        InferenceFailed: `STORE_FAILED`, a point has no id.
    """
    return Page(
        documents=[to_document(from_pb_id(one.id), from_pb_payload(one.payload)) for one in answer.result],
        vectors=[numbers_of(one.vectors) for one in answer.result],
        next=from_pb_id(answer.next_page_offset) if answer.HasField("next_page_offset") else None,
    )


def numbers_of(vectors: pb.VectorsOutput) -> Vector:
    """Read the unnamed vector of a point: float32 [dimension]."""
    vector = vectors.vector if vectors.HasField("vector") else vectors.vectors.vectors[""]
    # Servers before 1.17 fill the field that is deprecated since.
    return np.array(vector.dense.data if vector.HasField("dense") else vector.data, np.float32)


def require_applied(answer: pb.PointsOperationResponse, stage: str) -> None:
    """Check that a write can be found, and is not only noted.

    Raises:
        DeadlineSpent: The server gave up waiting.
        InferenceFailed: `STORE_FAILED`.
    """
    status = answer.result.status
    if status == pb.UpdateStatus.WaitTimeout:
        raise DeadlineSpent("DEADLINE_SPENT", f"no time left for {stage}", stage=stage)
    if status != pb.UpdateStatus.Completed:
        raise InferenceFailed("STORE_FAILED", "the vector store took a write without applying it", stage=stage)


def whole_seconds(deadline: Deadline) -> int:
    """Return the time left as the server takes it, in whole seconds: a hint, for the call's own deadline holds."""
    return max(1, math.ceil(deadline.remaining()))
