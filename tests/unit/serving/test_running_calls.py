"""What a drain waits for, without a server."""

import asyncio
from typing import Any

import pytest

from serving.running_calls import RunningCalls


class Details:
    """What gRPC says of a call before its request is read."""

    def __init__(self, method: str) -> None:
        self.method = method


async def call(calls: RunningCalls, method: str, answered: asyncio.Event) -> Any:
    """Be a call: pass the interceptor, and end when told."""

    async def handler(details: Any) -> Any:
        return f"handler of {details.method}"

    found = await calls.intercept_service(handler, Details(method))  # type: ignore[arg-type]
    await answered.wait()
    return found


async def test_a_call_runs_from_before_its_request_until_its_task_ends():
    """One whose request is still on its way is waited for, and so is one that comes meanwhile."""
    calls, first, second = RunningCalls(["a.v1.A"]), asyncio.Event(), asyncio.Event()
    one = asyncio.create_task(call(calls, "/a.v1.A/Do", first))
    await asyncio.sleep(0)
    ended = asyncio.create_task(calls.ended())
    await asyncio.sleep(0)
    other = asyncio.create_task(call(calls, "/a.v1.A/Do", second))
    first.set()
    assert await one == "handler of /a.v1.A/Do"
    done, _ = await asyncio.wait([ended], timeout=0)
    assert not done
    second.set()
    await other
    await ended


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Watch", "/a.v1.AndMore/Do"])
async def test_what_is_not_of_our_own_services_is_not_waited_for(method: str):
    """Other services' calls pass, and keep nothing from ending."""
    calls, answered = RunningCalls(["a.v1.A"]), asyncio.Event()
    running = asyncio.create_task(call(calls, method, answered))
    await asyncio.sleep(0)
    await calls.ended()
    answered.set()
    assert await running == f"handler of {method}"


async def test_a_call_that_is_cancelled_has_ended():
    """A caller who leaves keeps nothing from ending."""
    calls = RunningCalls(["a.v1.A"])
    running = asyncio.create_task(call(calls, "/a.v1.A/Do", asyncio.Event()))
    await asyncio.sleep(0)
    running.cancel()
    await calls.ended()
    assert running.cancelled()
