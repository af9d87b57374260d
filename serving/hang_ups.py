"""Callers that hang up while an answer is on its way: everyday, and no error of this server."""

import logging
import re

GRPC_LOGGER = "grpc._cython.cygrpc"
RAISED = "ExecuteBatchError raised in core by servicer method "
SENDING = re.compile(
    r'Failed "execute_batch": '
    r"\((<[\w.]*\.SendInitialMetadataOperation [^>]*>, )?<[\w.]*\.SendMessageOperation [^>]*>,?\)"
)
"""What gRPC says of a message of a stream that it could not send: of a connection that broke before its call ended."""


def hush_hang_ups() -> None:
    """Drop the ERROR with stack trace that gRPC logs for each, and nothing else that it logs.

    The call itself is counted as CANCELLED like every other call whose caller has gone.
    """
    logging.getLogger(GRPC_LOGGER).addFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not (record.getMessage().startswith(RAISED) and SENDING.fullmatch(str(error)))
