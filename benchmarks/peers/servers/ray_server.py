"""The library behind Ray Serve, with its batching across requests."""

import signal
from typing import Any

import library
import ray
from ray import serve
from starlette.requests import Request

REQUESTS = 32
WAIT_S = 0.005


@serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 1})
class Peer:
    """One model in one replica."""

    def __init__(self, kind: str, model: str) -> None:
        self._compute = library.load(kind, model)

    @serve.batch(max_batch_size=REQUESTS, batch_wait_timeout_s=WAIT_S)
    async def compute(self, requests: list[list[Any]]) -> list[Any]:
        """Compute the rows of all requests together."""
        return library.split(self._compute([row for rows in requests for row in rows]), list(map(len, requests)))

    async def __call__(self, request: Request) -> Any:
        """Answer one request."""
        return await self.compute(library.rows_of(await request.json()))


if __name__ == "__main__":
    given = library.options()
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=True)
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    serve.run(Peer.bind(given.kind, given.model), route_prefix="/compute")
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    ray.shutdown()
