"""The library behind LitServe, with its batching across requests."""

from typing import Any

import library
import litserve

REQUESTS = 32
WAIT_S = 0.005


class Peer(litserve.LitAPI):
    """One model in one worker."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - the library's own signature
        """Load."""
        self.compute = library.load(given.kind, given.model)

    def decode_request(self, request: dict[str, Any]) -> list[Any]:
        """Return a request's rows."""
        return library.rows_of(request)

    def batch(self, inputs: list[list[Any]]) -> list[list[Any]]:
        """Keep the requests' rows apart until they are computed."""
        return inputs

    def predict(self, x: list[list[Any]]) -> list[Any]:
        """Compute the rows of all requests together."""
        return library.split(self.compute([row for rows in x for row in rows]), list(map(len, x)))

    def unbatch(self, output: list[Any]) -> list[Any]:
        """Return one output per request."""
        return output

    def encode_response(self, output: Any) -> Any:
        """Return JSON."""
        return {"outputs": output}


given = library.options()

if __name__ == "__main__":
    api = Peer(max_batch_size=REQUESTS, batch_timeout=WAIT_S, api_path="/compute")
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=given.port, log_level="warning", generate_client_file=False)
