"""What a model server computes with: the model, its batcher and the tokenizer threads, opened and closed together."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from serving.batcher import Batcher
from serving.batching import Priority
from serving.bundle import Bundle, Kind
from serving.calibration import calibrate
from serving.deadline import Deadline
from serving.errors import NotReady
from serving.metrics import BatchMetrics, ServerMetrics, tell_model
from serving.model import Model
from serving.process import Fatal
from serving.requests import Answer
from serving.selftest import load_tested, warm_up
from serving.session import FloatArray
from serving.settings import ModelServerSettings
from serving.tokens import FrozenTokenizer, Tokens

log = logging.getLogger(__name__)

T = TypeVar("T")

# Measured: 100 characters take 34 us here and 79 us on a thread, 470 take 96 and 162. Longer ones would hold up others.
INLINE_CHARACTERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A model that is ready to serve."""

    model: Model
    batcher: Batcher[Tokens, FloatArray]
    tokenizer_threads: ThreadPoolExecutor

    @property
    def reference(self) -> Mapping[str, str]:
        """Which model, exactly: the fields of every API's ModelReference."""
        manifest = self.model.bundle.manifest
        return {
            "id": manifest.model_id,
            "revision": manifest.revision,
            "digest": self.model.bundle.digest,
            "precision": self.model.precision,
            "device": self.model.session.device,
        }

    def refuse_hopeless(self, deadline: Deadline, *, priority: Priority = Priority.INTERACTIVE) -> None:
        """Refuse whom `compute` would refuse whatever their rows are; for before they are tokenized."""
        self.batcher.refuse_hopeless(deadline, priority=priority)

    async def tokenize(self, call: Callable[[FrozenTokenizer], T], *, characters: int) -> T:
        """Run a call with the tokenizer, off the event loop unless the text is so short that the way is dearer."""
        if characters <= INLINE_CHARACTERS:
            return call(self.model.tokenizer)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.tokenizer_threads, call, self.model.tokenizer)

    async def compute(
        self,
        rows: Sequence[Tokens],
        deadline: Deadline,
        *,
        priority: Priority = Priority.INTERACTIVE,
        wait: bool = False,
    ) -> Answer[FloatArray]:
        """Compute rows, all or none, batched with those of other requests; see Batcher.submit for the errors."""
        return await self.batcher.submit(rows, deadline, priority=priority, wait=wait)


class EngineSlot:
    """Where a service finds its engine once it is loaded."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def fill(self, engine: Engine) -> None:
        """Put the engine in."""
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            NotReady: It is still being loaded.
        """
        if self._engine is None:
            raise NotReady("STARTING", "the model is still being loaded")
        return self._engine


@asynccontextmanager
async def open_engine(
    settings: ModelServerSettings, kind: Kind, metrics: ServerMetrics, on_death: Fatal
) -> AsyncIterator[Engine]:
    """Load and test the model off the event loop, then start its batcher; leaving computes what still waits.

    Raises:
        Misconfigured: The bundle, the device or the golden outputs are not as they have to be.
    """
    model = await asyncio.to_thread(_load, settings, kind)
    device = model.session.device
    limits = settings.batch_limits(device)
    instances = [model, *[await asyncio.to_thread(model.twin) for _ in range(settings.instances - 1)]]
    costs = await asyncio.to_thread(calibrate, model, limits)
    log.info("a batch costs %s", costs.cost)
    batches = BatchMetrics(metrics)
    batcher: Batcher[Tokens, FloatArray] = Batcher(
        instances,
        limits,
        costs=costs,
        prefetch=device != "cpu" if settings.prefetch is None else settings.prefetch,
        on_batch=batches.observe,
        on_end=batches.count_end,
        on_death=on_death,
    )
    batches.watch(
        waiting_rows=lambda: batcher.waiting_rows,
        waiting_tokens=lambda: batcher.waiting_tokens,
        oldest_age=lambda: batcher.oldest_age,
    )
    with ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="tokenizer") as threads:
        async with batcher:
            engine = Engine(model=model, batcher=batcher, tokenizer_threads=threads)
            tell_model(metrics, engine.reference, instances=len(instances))
            yield engine


def _load(settings: ModelServerSettings, kind: Kind) -> Model:
    begun = time.monotonic()
    model, report = load_tested(Bundle(settings.bundle), kind, settings.session_options, settings.max_tokens)
    limits = settings.batch_limits(model.session.device)
    warm_up(model, max_rows=limits.max_batch_rows, max_batch_tokens=limits.max_batch_tokens)
    log.info(
        "%s %s (asked for %s) on %s (asked for %s), %d threads, at most %d tokens; loaded and tested in %.1f s, "
        "largest difference of %d rows %.2g",
        model.bundle.manifest.model_id,
        model.precision,
        settings.precision,
        model.session.device,
        settings.device,
        model.session.threads,
        model.max_tokens,
        time.monotonic() - begun,
        report.row_count,
        report.max_difference,
    )
    return model
