"""Channels as any caller has them, but that none shares a connection with another.

By default gRPC shares connections within a process. A channel on which a call failed lives until Python's garbage
collection finds it, and meanwhile connects again and again; a server that is given the port of one that has ended would
be called unavailable by whoever shares that connection.
"""

import grpc

OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
SOON_AGAIN = ("grpc.max_reconnect_backoff_ms", 500)
"""For servers that are asked before they listen: pauses that double up to two minutes could miss them for as long."""


def client(
    address: str | int, *options: tuple[str, int], credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel:
    """Open a channel to an address, or to a port of this machine; every option but these is as gRPC's default is."""
    target = f"127.0.0.1:{address}" if isinstance(address, int) else address
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=[OWN_CONNECTION, *options])
    return grpc.aio.secure_channel(target, credentials, options=[OWN_CONNECTION, *options])
