"""A server's Prometheus page as a reader has it."""

import asyncio
from collections.abc import Callable
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PATIENCE_S = 20


async def fetch(port: int, accept: str = "") -> str:
    """Read a page, in the form that is accepted."""
    return await asyncio.to_thread(_read, port, accept)


class Page:
    """The samples of one page."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Return a sample; None where there is none."""
        return self._samples.get((name, frozenset(labels.items())))

    def sum(self, name: str) -> float:
        """Return the sum of all samples of a name."""
        return sum(value for (sample, _), value in self._samples.items() if sample == name)


async def page_when(port: int, ready: Callable[[Page], bool]) -> Page:
    """Read a page until it is as wanted: a call counts once its answer is on its way."""
    async with asyncio.timeout(PATIENCE_S):
        while not ready(page := Page(await fetch(port))):
            pass
    return page


def _read(port: int, accept: str) -> str:
    request = Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept} if accept else {})
    with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310 - a server of this test
        text: str = answer.read().decode()
    return text
