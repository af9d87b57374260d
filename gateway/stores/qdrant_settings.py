"""The Qdrant store as the gateway's settings describe it."""

from pathlib import Path

from gateway.settings import GatewaySettings
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from serving.errors import Misconfigured
from serving.tls import TlsFiles


async def open_qdrant(settings: GatewaySettings) -> QdrantStore:
    """Open the store.

    Raises:
        Misconfigured: An operator has to act.
    """
    return await QdrantStore.open(target_of(settings))


def target_of(settings: GatewaySettings) -> QdrantTarget:
    """Return where the server is and how the gateway is let in.

    Raises:
        Misconfigured: The address, the key or the pair of files is none.
    """
    files = TlsFiles(cert=settings.qdrant_cert_file, key=settings.qdrant_key_file, ca=settings.qdrant_ca_file)
    return QdrantTarget.parse(settings.qdrant_url, api_key=_api_key(settings), tls=settings.qdrant_tls, files=files)


def _api_key(settings: GatewaySettings) -> str | None:
    if settings.qdrant_api_key_file is not None:
        return _read(settings.qdrant_api_key_file)
    return None if settings.qdrant_api_key is None else settings.qdrant_api_key.get_secret_value()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured("STORE_API_KEY", f"{path} cannot be read as a Qdrant API key") from error
