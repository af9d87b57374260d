"""Asking a Qdrant server who it is, over the port that is used for everything else."""

import logging
import re

import grpc
from qdrant_client import grpc as pb

from gateway.stores.qdrant_status import NOT_GRPC, answered
from gateway.stores.qdrant_target import REST_PORT, QdrantTarget
from serving.errors import DeadlineSpent, Misconfigured, Overloaded, Unavailable

PATIENCE_S = 10.0
"""How long a server may take to say who it is: one that has just been started is busy with its collections."""

Version = tuple[int, int]
"""Major and minor."""

LEAST_VERSION: Version = (1, 16)
"""The first with metadata of collections."""

CORPUS_VERSION: Version = (1, 19)
"""The first that counts words among some documents only when asked to; one before answers as if it had not been asked
(https://github.com/qdrant/qdrant/pull/9661)."""

log = logging.getLogger(__name__)


async def probe(channel: grpc.aio.Channel, target: QdrantTarget, patience_s: float) -> Version | None:
    """Log what answers at the address, or that nothing does; return its version where that can be told.

    Raises:
        Misconfigured: `STORE_MISCONFIGURED`, it is no gRPC port of Qdrant; `STORE_TOO_OLD`; `STORE_ACCESS_DENIED`.
    """
    stub = pb.QdrantStub(channel)  # type: ignore[no-untyped-call]  # generated
    try:
        call = stub.HealthCheck(pb.HealthCheckRequest(), timeout=patience_s, metadata=target.metadata)
        answer = await answered(call, stage="open")
    except (Unavailable, DeadlineSpent, Overloaded) as error:
        hint = f"; {NOT_GRPC}" if target.port == REST_PORT else ""
        log.warning("no Qdrant answers at %s yet%s; calls look for it again", target.address, hint)
        log.debug("what gRPC says", exc_info=error)
        return None
    if "qdrant" not in answer.title.lower():
        raise Misconfigured("STORE_MISCONFIGURED", f"what answers at {target.address} is no Qdrant")
    log.info("Qdrant %s at %s", answer.version, target.address)
    version = version_of(answer)
    if version is not None and version < LEAST_VERSION:
        raise Misconfigured("STORE_TOO_OLD", f"Qdrant at {target.address} is {answer.version}; 1.16 or newer is needed")
    return version


def version_of(answer: pb.HealthCheckReply) -> Version | None:
    """Read a server's version; None where it is not one."""
    read = re.match(r"(\d+)\.(\d+)", answer.version)
    return None if read is None else (int(read[1]), int(read[2]))
