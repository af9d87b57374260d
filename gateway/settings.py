"""What the gateway can be told: `TWOSTAGE_GATEWAY_PORT` and so on."""

import re
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from serving.settings import CLIENT_MESSAGE_BYTES, MAX_PORT, ServerSettings

API = re.compile(r"https?://(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\])(:(?P<port>[0-9]{1,5}))?(/[^\s?#]*)?")


class GatewaySettings(ServerSettings):
    """Settings of the gateway."""

    prefix: ClassVar[str] = "TWOSTAGE_GATEWAY_"
    model_config = SettingsConfigDict(env_prefix=prefix)

    port: int = Field(50_051, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    encoder_target: str = "dns:///127.0.0.1:50052"
    """gRPC target of the encoders; a name with several addresses is balanced over."""
    reranker_target: str = "dns:///127.0.0.1:50053"
    """gRPC target of the rerankers."""
    backend_connections: int = Field(1, ge=1, le=64)
    """Connections to each address of encoders and rerankers, which calls take in turn. One reaches one worker only: for
    servers with several workers take at least four times as many."""
    backend_tls: bool = False
    """Whether encoders and rerankers are called over TLS; any of the next three means that, too."""
    backend_ca_file: Path | None = None
    """Certificates to trust for them instead of the system's, in PEM. Read again when it changes, like the others."""
    backend_cert_file: Path | None = None
    """The gateway's own certificate, where they want one."""
    backend_key_file: Path | None = None
    """Its private key."""
    backend_api_key_file: Path | None = None
    """File with the API key that encoders and rerankers are called with; blanks around it do not count."""
    max_collections: int = Field(1_000, ge=1)
    """Most collections that a caller may know of before it can make no more; each takes memory and open files."""
    store: Literal["edge", "qdrant"] = "edge"
    """Which vector store: the embedded one, or a Qdrant server, which several gateways can share."""
    store_path: Path = Path(".twostage/store")
    """Directory of the embedded vector store."""
    qdrant_url: str = "http://127.0.0.1:6334"
    """The Qdrant server's gRPC port; https:// means TLS."""
    qdrant_tls: bool = False
    """Whether to use TLS whatever the URL says."""
    qdrant_ca_file: Path | None = None
    """Certificates to trust for Qdrant instead of the system's; implies TLS. Read again when they change."""
    qdrant_cert_file: Path | None = None
    """The gateway's own certificate, where Qdrant wants one of its clients; implies TLS. Read again when it changes."""
    qdrant_key_file: Path | None = None
    """Private key of that certificate."""
    qdrant_api_key: SecretStr | None = None
    """API key of the Qdrant server."""
    qdrant_api_key_file: Path | None = None
    """File with that key, which then wins over `qdrant_api_key`; blanks around it do not count."""
    synonyms_path: Path | None = None
    """Directory of synonyms, `<collection>.yaml` each, see docs/retrieval.md. Read again when they change."""
    writer_url: str | None = None
    """API that speaks OpenAI's chat completions, for example https://host/v1: writes hypothetical passages for searches
    that ask for them. It is sent their queries."""
    writer_model: str = ""
    """What it is to write with; required with `writer_url`."""
    writer_api_key_file: Path | None = None
    """File with the API key for it; blanks around it do not count. Read again when it changes."""
    writer_passage_count: int = Field(1, ge=1, le=8)
    """Passages per query."""
    writer_max_tokens: int = Field(200, ge=16, le=4_096)
    """Most tokens of a passage, as it counts them."""
    writer_cap_s: float = Field(2.0, gt=0)
    """Most time for writing; at most half of a search's time is taken."""
    encode_cap_s: float = Field(5.0, gt=0)
    """Most time for encoding a query."""
    search_cap_s: float = Field(5.0, gt=0)
    """Most time for the vector search."""
    rerank_cap_s: float = Field(60.0, gt=0)
    """Most time for reranking; long, because a caller that allows more than the default deadline means it."""
    answer_margin_s: float = Field(0.02, ge=0)
    """Kept back from every stage, so that an answer about a late stage still reaches the caller in time."""
    search_share: float = Field(0.1, ge=0, le=0.4)
    """Part of a search's time that encoding its query leaves to the vector search."""
    rerank_share: float = Field(0.3, ge=0, le=0.5)
    """Part of a search's time that the first stage leaves to the reranker where the search requires it."""
    breaker_failures: int = Field(5, ge=1)
    """Calls in a row without an answer after which an encoder or reranker is left alone for a while."""
    breaker_max_pause_s: float = Field(2.0, gt=0)
    """Longest time for which it is left alone before one call tries it again."""
    breaker_patience_s: float = Field(1.0, ge=0)
    """A call that was given less time than this and got no answer does not count for that."""
    upsert_deadline_s: float = Field(300.0, gt=0)
    """Budget of one message of documents whose caller set no deadline."""
    max_answer_bytes: int = Field(CLIENT_MESSAGE_BYTES - 256 * 1024, ge=64 * 1024)
    """Most bytes of text and payload in one answer: what every gRPC client accepts, less a margin for the rest."""

    @field_validator("writer_url")
    @classmethod
    def _is_api(cls, value: str | None) -> str | None:
        # A user would be sent in the key's place, and a query would come before the path of a call.
        if value is not None and not _is_api(value):
            raise ValueError("http(s)://host/v1 or http(s)://host:port/v1 is wanted, and no user, password or query")
        return value

    @model_validator(mode="after")
    def _writer_is_whole(self) -> Self:
        if self.writer_url is not None and not self.writer_model:
            raise ValueError("writer_url needs writer_model")
        return self

    @model_validator(mode="after")
    def _store_is_shared(self) -> Self:
        if self.workers > 1 and self.store == "edge":
            raise ValueError(
                f"workers={self.workers} with store=edge: the embedded store belongs to one process; "
                "use a Qdrant server or one worker"
            )
        return self


def _is_api(url: str) -> bool:
    """Tell whether a URL has a host that can be one, a port that can be one, if any, and a path, if any."""
    found = API.fullmatch(url)
    if found is None or not url.isprintable():
        return False
    host, port = found["host"], found["port"]
    try:
        if host.startswith("["):
            IPv6Address(host[1:-1])
        elif re.fullmatch("[0-9.]+", host):
            IPv4Address(host)
        else:
            host.encode("idna")
    except ValueError:
        return False
    return port is None or 0 < int(port) <= MAX_PORT
