"""Settings that every server has, read once from the environment. The only module here that reads it.

What OpenTelemetry has variables of its own for is read by it, and checked in `serving.tracing_setup`.
"""

import os
import re
import sys
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from serving.batching import BatchLimits
from serving.cpu import usable_cpus
from serving.precision import PrecisionChoice
from serving.session_options import Device, SessionOptions
from serving.tls import TlsFiles

S = TypeVar("S", bound="ServerSettings")

EXIT_MISCONFIGURED = 2
# What docs/batching.md finds: a CPU computes hardly faster in larger batches, and a small one makes others wait less; a
# GPU wants to be filled, and gets through a long queue in time.
BATCH_TOKENS = {"cpu": 512, "cuda": 16_384, "tensorrt": 16_384}
WAITING_TOKENS = {"cpu": 131_072, "cuda": 1_048_576, "tensorrt": 1_048_576}
# An answer of max_texts vectors has to fit the 4 MiB that every gRPC client accepts by default.
CLIENT_MESSAGE_BYTES = 4 * 1024 * 1024
ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})/?", re.ASCII)
MAX_PORT = 65_535


class ServerSettings(BaseSettings):
    """What any of the servers can be told."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)
    prefix: ClassVar[str] = ""

    host: str = "0.0.0.0"  # noqa: S104 - a container's clients come from outside; `twostage up` binds to loopback
    """Address to listen on."""
    port: int = Field(0, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    metrics_port: int = Field(0, ge=0, le=65_535)
    """Port of the Prometheus page; 0 is none. With several workers it is the first one's, and the others' follow."""
    workers: int = Field(1, ge=1, le=256)
    """Processes that share the port; every other limit is per worker. For where one Python process is the limit."""
    parent_pid: int | None = Field(None, ge=1)
    """Set by a server for its own workers, not by people: a worker shares its port, and ends with its parent."""
    health_port: int = Field(0, ge=0, le=65_535)
    """Port of a second listener that answers health checks and nothing else, without TLS; 0 is none. For probes that
    speak no TLS or have no certificate, as Kubernetes' own."""
    tls_cert_file: Path | None = None
    """The server's certificate and what it was signed with, in PEM; set means TLS. Read again when it changes."""
    tls_key_file: Path | None = None
    """Its private key."""
    tls_client_ca_file: Path | None = None
    """Certificates that every client's has to be signed with; set means that clients need one."""
    api_keys_file: Path | None = None
    """Who may call, see docs/security.md; default is everybody. Read again when it changes."""
    default_deadline_s: float = Field(10.0, gt=0)
    """Budget of a call whose caller set none."""
    max_message_bytes: int = Field(32 * 1024 * 1024, ge=64 * 1024)
    """Largest message that is read."""
    drain_delay_s: float = Field(0.0, ge=0)
    """After SIGTERM: how long calls are still taken while health says NOT_SERVING, so that balancers notice."""
    grace_s: float = Field(30.0, ge=0)
    """After that: how long running calls may take."""
    max_connection_age_s: float = Field(300.0, gt=0)
    """A connection is closed gently at this age, with jitter, so that clients find new replicas."""
    min_ping_interval_s: float = Field(10.0, gt=0)
    """Keepalive pings more frequent than this close the connection."""
    reflection: bool = True
    """Whether gRPC reflection is served; off in production is usual."""
    channelz: bool = False
    """Whether channelz is served."""
    otlp_endpoint: str | None = None
    """Where spans are sent by OTLP over gRPC: http://collector:4317, or https:// for TLS; by default none are made.
    `OTEL_EXPORTER_OTLP_HEADERS` and the like count as well, see docs/tracing.md."""
    trace_share: float = Field(1.0, ge=0, le=1)
    """Share of the calls without a trace that are traced; for calls with one their callers have decided."""
    log_format: Literal["text", "json"] = "text"
    """How log lines are written."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is written."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_endpoint(cls, value: str | None) -> str | None:
        found = None if value is None else ENDPOINT.fullmatch(value)
        if value is not None and (found is None or not 0 < int(found[1]) <= MAX_PORT):
            raise ValueError("http://host:port is wanted, or https:// for TLS, and no path")
        return value

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file come together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_client_ca_file needs tls_cert_file and tls_key_file")
        return self

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files of the server's TLS; None is no TLS."""
        if self.tls_cert_file is None:
            return None
        return TlsFiles(cert=self.tls_cert_file, key=self.tls_key_file, ca=self.tls_client_ca_file)


class ModelServerSettings(ServerSettings):
    """What a server of a model can be told."""

    bundle: Path
    """Directory of the model bundle."""
    device: Device = "auto"
    """Where to compute: auto, cpu, cuda or tensorrt."""
    precision: PrecisionChoice = "auto"
    """Which form of the model to run: auto, fp32, fp16 or int8; auto is fp16 on a GPU, int8 for a reranker on a CPU
    with instructions for it, where the bundle has them, and else fp32."""
    device_memory_mib: int | None = Field(None, ge=64)
    """Most memory of a GPU that tensors may take; default is all."""
    threads: int | None = Field(None, ge=1)
    """Threads of one run on a CPU; default is what affinity and cgroup quota allow, shared by workers and instances."""
    instances: int = Field(1, ge=1, le=64)
    """Batches computed at the same time, each by a session with its own weights in memory and its share of threads."""
    tokenizer_threads: int = Field(2, ge=1)
    """Requests tokenized at the same time."""
    max_tokens: int | None = Field(None, ge=8)
    """Tokens per row; default and most is what the model can."""
    max_text_bytes: int = Field(65_536, ge=1)
    """Bytes of UTF-8 per text."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Padded tokens per batch; default is `BATCH_TOKENS` of the device."""
    max_batch_rows: int = Field(256, ge=1)
    """Rows per batch."""
    max_waiting_tokens: int | None = Field(None, ge=1)
    """Tokens of one priority that may wait before calls are refused; default is `WAITING_TOKENS` of the device."""
    max_delay_ms: float = Field(0.0, ge=0)
    """How long an idle device waits for a batch that is not full: more throughput where calls are small and many."""
    prefetch: bool | None = None
    """Whether a full batch is prepared while another one runs; default is yes on a GPU, where batches are short."""

    @property
    def session_options(self) -> SessionOptions:
        """How the model runs."""
        return SessionOptions(
            device=self.device,
            threads=self.threads or max(1, usable_cpus() // (self.workers * self.instances)),
            precision=self.precision,
            device_memory_mib=self.device_memory_mib,
        )

    def batch_limits(self, device: str) -> BatchLimits:
        """What a batch and the queue may hold on the device that was really taken."""
        return BatchLimits(
            max_batch_tokens=self.max_batch_tokens or BATCH_TOKENS[device],
            max_batch_rows=self.max_batch_rows,
            max_waiting_tokens=self.max_waiting_tokens or WAITING_TOKENS[device],
            max_delay=self.max_delay_ms / 1e3,
        )

    @model_validator(mode="after")
    def _message_fits(self) -> Self:
        if self.max_text_bytes > self.max_message_bytes:
            raise ValueError("max_text_bytes is over max_message_bytes: no such text could be read")
        return self


def load(kind: type[S]) -> S:
    """Read settings from the environment; where they are wrong, name every problem and exit with status 2."""
    # One request is tokenized by one thread: the library's own pool would take every core of the host.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    problems = [f"{name}: no such setting" for name in _unknown(kind)]
    try:
        settings = kind()
    except ValidationError as error:
        problems += [_sentence(kind, detail["loc"], detail["msg"]) for detail in error.errors()]
    if problems:
        sys.stderr.write("".join(f"{problem}\n" for problem in problems))
        raise SystemExit(EXIT_MISCONFIGURED)
    return settings


def environment(settings: ServerSettings, **changes: int) -> dict[str, str]:
    """Return this process's environment for a child that is to have other settings in part."""
    changed = {f"{settings.prefix}{name}".upper(): str(value) for name, value in changes.items()}
    # Names count in upper and lower case: one that stays would contradict ours.
    return {name: value for name, value in os.environ.items() if name.upper() not in changed} | changed


def _unknown(kind: type[ServerSettings]) -> list[str]:
    """A misspelt setting must not be silently ignored."""
    known = {f"{kind.prefix}{name}".upper() for name in kind.model_fields}
    return sorted(name for name in os.environ if name.upper().startswith(kind.prefix) and name.upper() not in known)


def _sentence(kind: type[ServerSettings], location: tuple[int | str, ...], message: str) -> str:
    name = f"{kind.prefix}{location[0]}".upper() if location else kind.prefix.rstrip("_")
    return f"{name}: {message}"
