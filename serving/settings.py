"""Settings that every server has, read once from the environment. The only module here that reads it."""

import os
import sys
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from serving.batching import BatchLimits
from serving.session import Device, SessionOptions

S = TypeVar("S", bound="ServerSettings")

EXIT_MISCONFIGURED = 2
# A CPU computes no faster in larger batches (measured: 20 pairs of 110 tokens take as long at 512 as at 16,384), and a
# small one makes others wait less; a GPU wants to be filled.
BATCH_TOKENS = {"cpu": 1_024, "cuda": 16_384}
# An answer of max_texts vectors has to fit the 4 MiB that every gRPC client accepts by default.
CLIENT_MESSAGE_BYTES = 4 * 1024 * 1024


class ServerSettings(BaseSettings):
    """What any of the servers can be told."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)
    prefix: ClassVar[str] = ""

    host: str = "0.0.0.0"  # noqa: S104 - a container's clients come from outside; `twostage up` binds to loopback
    """Address to listen on."""
    port: int = Field(0, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    metrics_port: int = Field(0, ge=0, le=65_535)
    """Port of the Prometheus page; 0 is none."""
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
    log_format: Literal["text", "json"] = "text"
    """How log lines are written."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is written."""


class ModelServerSettings(ServerSettings):
    """What a server of a model can be told."""

    bundle: Path
    """Directory of the model bundle."""
    device: Device = "auto"
    """Where to compute: auto, cpu or cuda."""
    threads: int | None = Field(None, ge=1)
    """Threads of one run on a CPU; default is what affinity and cgroup quota allow."""
    tokenizer_threads: int = Field(2, ge=1)
    """Requests tokenized at the same time."""
    max_tokens: int | None = Field(None, ge=8)
    """Tokens per row; default and most is what the model can."""
    max_text_bytes: int = Field(65_536, ge=1)
    """Bytes of UTF-8 per text."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Padded tokens per batch; default is `BATCH_TOKENS` of the device."""
    max_batch_rows: int = Field(64, ge=1)
    """Rows per batch."""
    max_waiting_tokens: int = Field(131_072, ge=1)
    """Tokens that may wait for the device before calls are refused."""
    max_row_age_s: float = Field(1.0, ge=0)
    """After this wait a row is taken by age, whatever its length."""

    @property
    def session_options(self) -> SessionOptions:
        """How the model runs."""
        return SessionOptions(device=self.device, threads=self.threads)

    def batch_limits(self, device: str) -> BatchLimits:
        """What a batch and the queue may hold on the device that was really taken."""
        return BatchLimits(
            max_batch_tokens=self.max_batch_tokens or BATCH_TOKENS[device],
            max_batch_rows=self.max_batch_rows,
            max_waiting_tokens=self.max_waiting_tokens,
            max_age=self.max_row_age_s,
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


def _unknown(kind: type[ServerSettings]) -> list[str]:
    """A misspelt setting must not be silently ignored."""
    known = {f"{kind.prefix}{name}".upper() for name in kind.model_fields}
    return sorted(name for name in os.environ if name.upper().startswith(kind.prefix) and name.upper() not in known)


def _sentence(kind: type[ServerSettings], location: tuple[int | str, ...], message: str) -> str:
    name = f"{kind.prefix}{location[0]}".upper() if location else kind.prefix.rstrip("_")
    return f"{name}: {message}"
