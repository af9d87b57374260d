"""How commands are let in by a gateway: TLS, a certificate of one's own, an API key."""

import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from cli.console import note
from serving.errors import Misconfigured
from serving.keyed import KeyedChannel, on_this_machine, watch_key
from serving.tls import TlsFiles, channel_credentials, watch

API_KEY_VARIABLE = "TWOSTAGE_API_KEY"
"""A key is no option: everybody on a machine can read what programs were started with."""

Tls = Annotated[bool, typer.Option("--tls", envvar="TWOSTAGE_TLS", help="Talk TLS to the gateway.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(envvar="TWOSTAGE_TLS_CA", metavar="FILE", help="Trust these, not the system's; implies --tls."),
]
TlsCert = Annotated[
    Path | None, typer.Option(envvar="TWOSTAGE_TLS_CERT", metavar="FILE", help="One's own certificate; implies --tls.")
]
TlsKey = Annotated[
    Path | None, typer.Option(envvar="TWOSTAGE_TLS_KEY", metavar="FILE", help="The private key of --tls-cert.")
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="TWOSTAGE_API_KEY_FILE",
        metavar="FILE",
        help=f"File with an API key; {API_KEY_VARIABLE} holds one itself.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """What to show a gateway, and what to ask of it."""

    tls: bool = False
    files: TlsFiles = field(default_factory=TlsFiles)
    api_key: str | None = field(default=None, repr=False)

    @property
    def talks_tls(self) -> bool:
        """Whether channels are to have TLS; any file means it."""
        return self.tls or bool(self.files.paths)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return what a channel needs for TLS, or None.

        Raises:
            Misconfigured: The files are wrong.
        """
        return channel_credentials(watch(self.files).current()) if self.talks_tls else None

    def keyed(self, channel: Any, address: str) -> Any:
        """Return a channel that sends the key along, where there is one."""
        if self.api_key is None:
            return channel
        if not (self.talks_tls or on_this_machine(address)):
            note(f"the API key goes to {address} in the clear; --tls is off", "yellow")
        key = self.api_key
        return KeyedChannel(channel, lambda: key)


PLAIN = ClientAccess()
"""For servers that were started by this program: on loopback, without TLS."""

access: ContextVar[ClientAccess] = ContextVar("access", default=PLAIN)
"""How the command that runs is let in."""


def read_access(*, tls: bool, files: TlsFiles, api_key_file: Path | None) -> ClientAccess:
    """Put together what the options and the environment say.

    Raises:
        Misconfigured: The file holds no key.
    """
    key = os.environ.get(API_KEY_VARIABLE) or None
    if api_key_file is not None:
        key = watch_key(api_key_file).current()
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise Misconfigured("API_KEY_FILE", f"{API_KEY_VARIABLE} holds no API key")
    return ClientAccess(tls=tls, files=files, api_key=key)
