"""The Qdrant store as the gateway's settings describe it."""

from pathlib import Path

from gateway.settings import GatewaySettings
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from serving.errors import Misconfigured


async def open_qdrant(settings: GatewaySettings) -> QdrantStore:
    """Open the store.

    Raises:
        Misconfigured: An operator has to act.
    """
    target = QdrantTarget.parse(
        settings.qdrant_url, api_key=_api_key(settings), tls=settings.qdrant_tls, ca_file=settings.qdrant_ca_file
    )
    return await QdrantStore.open(target)


def _api_key(settings: GatewaySettings) -> str | None:
    if settings.qdrant_api_key_file is not None:
        return _read(settings.qdrant_api_key_file)
    return None if settings.qdrant_api_key is None else settings.qdrant_api_key.get_secret_value()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured("STORE_API_KEY", f"{path} cannot be read as a Qdrant API key") from error
