"""`python -m serving.probe HOST:PORT [SERVICE]`: whether a server says SERVING; for health checks of containers."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

TIMEOUT_S = 3.0
EXIT_SERVING, EXIT_NOT_SERVING = 0, 1


def ask(channel: grpc.Channel, service: str = "", timeout_s: float = TIMEOUT_S) -> str:
    """Return what the server says of a service, "" is all of it; or the status code with which it did not answer."""
    stub: Any = HealthStub(channel)  # its published types know no method
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
    except grpc.RpcError as error:
        return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(arguments: Sequence[str]) -> int:
    """Ask, say the answer on standard output, and return the exit status: 0 only for SERVING."""
    given = _parser().parse_args(arguments)
    with _open(given) as channel:
        said = ask(channel, given.service)
    sys.stdout.write(f"{said}\n")
    return EXIT_SERVING if said == "SERVING" else EXIT_NOT_SERVING


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serving.probe", description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("service", metavar="SERVICE", nargs="?", default="", help="its full name; default is all")
    parser.add_argument("--ca", metavar="FILE", type=Path, help="certificates to trust; means TLS")
    parser.add_argument("--cert", metavar="FILE", type=Path, help="our certificate, where the server wants one")
    parser.add_argument("--key", metavar="FILE", type=Path, help="its private key")
    parser.add_argument("--name", help="the name in the server's certificate; default is HOST")
    return parser


def _open(given: argparse.Namespace) -> grpc.Channel:
    options = [("grpc.enable_http_proxy", 0)]
    if given.ca is None:
        return grpc.insecure_channel(given.address, options)
    ca, key, cert = (None if path is None else path.read_bytes() for path in (given.ca, given.key, given.cert))
    name = [("grpc.ssl_target_name_override", given.name)] if given.name else []
    return grpc.secure_channel(given.address, grpc.ssl_channel_credentials(ca, key, cert), [*options, *name])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
