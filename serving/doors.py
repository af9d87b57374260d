"""How a server's port is opened: with TLS or without, to everybody or to those who are known."""

import ipaddress
import logging
from collections.abc import Sequence

import grpc
from grpc_channelz.v1 import channelz_pb2
from grpc_reflection.v1alpha import reflection
from opentelemetry.trace import Tracer

from serving.auth import Access, open_authenticator
from serving.errors import Misconfigured
from serving.interceptors import CallGuard
from serving.metrics import ServerMetrics
from serving.settings import ServerSettings
from serving.tls import server_credentials

CHANNELZ = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name

log = logging.getLogger(__name__)


def open_guards(
    settings: ServerSettings,
    metrics: ServerMetrics,
    services: Sequence[str],
    access: Access | None,
    tracer: Tracer | None = None,
) -> list[grpc.aio.ServerInterceptor]:
    """Make what stands before every handler, the outermost first.

    Raises:
        Misconfigured: The file of keys cannot be read or is wrong.
    """
    authenticator = open_authenticator(settings.api_keys_file, access)
    if authenticator is None:
        if settings.tls_client_ca_file is None and not _loopback(settings.host):
            log.warning("open to whoever reaches %s: neither API keys nor client certificates", settings.host)
        return [CallGuard(tuple(services), metrics, tracer)]
    # Reflection and channelz are guarded as well, so that whom the authenticator refuses gets a status and not UNKNOWN.
    return [CallGuard((*services, reflection.SERVICE_NAME, CHANNELZ), metrics, tracer), authenticator]


def bind(server: grpc.aio.Server, settings: ServerSettings) -> int:
    """Open the port and return its number.

    Raises:
        Misconfigured: The address cannot be bound, or the certificates are wrong.
    """
    files = settings.tls_files
    credentials = None if files is None else server_credentials(files)
    where = address(settings.host, settings.port)
    try:
        return int(
            server.add_insecure_port(where) if credentials is None else server.add_secure_port(where, credentials)
        )
    except RuntimeError as error:
        raise Misconfigured("ADDRESS_UNAVAILABLE", f"cannot listen on {where}; is another server there?") from error


def address(host: str, port: int) -> str:
    """Write host and port as gRPC reads them."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
