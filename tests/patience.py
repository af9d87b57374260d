"""What has to happen within little time, on a machine that may stand still for seconds."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

T = TypeVar("T")
BUDGETS_S = (0.3, 2.0, 15.0)
"""The first is enough nearly always; the last outlasts any pause that a test has to."""


class Late(Exception):
    """The time was over before it could show what a test is about."""


async def with_more_time(attempt: Callable[[float], Awaitable[T]]) -> T:
    """Make an attempt with little time, and again with more where that was too little for anybody; the last counts.

    Args:
        attempt: Given seconds; raises `Late`, or the DEADLINE_EXCEEDED of a call that has to be answered, where they
            were over too soon. Whatever else it raises is wrong.
    """
    *shorter, longest = BUDGETS_S
    for seconds in shorter:
        try:
            return await attempt(seconds)
        except Late:
            pass
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
    return await attempt(longest)
