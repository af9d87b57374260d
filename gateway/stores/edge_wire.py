"""Messages between the gateway and the engine's process: how they are framed, and how long they may be.

Knows neither side.
"""

import io
import pickle
import struct
from typing import Any

from gateway.stores.records import answer_too_large

HEADER = struct.Struct("!i")
"""What `multiprocessing.connection.Connection`, the worker's side, puts in front of a message: its bytes. In front of
longer ones than that holds it puts -1 and the bytes after that; none are sent."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""As much as a message of a Qdrant server may hold."""
MAX_REQUEST_BYTES = 2**31 - 1
"""What `HEADER` can say. What callers send is far below it: the gateway's own limits are."""


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MAX_ANSWER_BYTES:
            raise answer_too_large()
        return super().write(data)


def packed(answer: Any) -> memoryview:
    """Pickle an answer, no further than it may be long.

    Raises:
        InferenceFailed: `ANSWER_TOO_LARGE`.
    """
    written = _Bounded()
    pickle.Pickler(written).dump(answer)
    return written.getbuffer()
