"""The servers' Prometheus pages before and after a run: what they counted, and where the time went meanwhile."""

import asyncio
import math
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from cli.loading.client import Target
from cli.loading.generator import SpanKey
from cli.loading.summary import MS, Spread
from serving.errors import Misconfigured

FETCH_TIMEOUT_S = 5.0
SETTLE_S, SETTLE_TRIES = 0.1, 20
"""A server counts a call once its answer is on its way, so the last ones may be missing for a moment."""

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The samples of one or several pages, added up."""

    values: Mapping[tuple[str, Labels], float]
    families: frozenset[str]

    def since(self, before: "Page") -> "Page":
        """Return what was added since an earlier page.

        Raises:
            Misconfigured: `METRICS_RESET`, a counter went down: a server was started again meanwhile.
        """
        added = {key: value - before.values.get(key, 0.0) for key, value in self.values.items()}
        if any(value < 0 for (name, _), value in added.items() if name.endswith(("_total", "_bucket", "_count"))):
            raise Misconfigured("METRICS_RESET", "a server was started again during the run: its counters went down")
        return Page(values=added, families=self.families)

    def calls(self, target: Target) -> dict[str, int]:
        """Return the calls of the target's method by status code, those that were made only."""
        found = {}
        for (name, labels), value in self.values.items():
            told = dict(labels)
            if name == f"{target.server}_calls_total" and told.get("method") == target.rpc and value:
                found[told["code"]] = round(value)
        return found

    def stages(self, target: Target) -> dict[SpanKey, Spread]:
        """Return the spread of every (stage, part), percentiles by interpolation within buckets.

        What was observed in some calls only counts as 0 in the others.
        """
        name = f"{target.server}_stage_seconds"
        buckets: dict[SpanKey, dict[float, float]] = defaultdict(dict)
        sums: dict[SpanKey, float] = {}
        for (sample, labels), value in self.values.items():
            told = dict(labels)
            key = told.get("stage", ""), told.get("part", "")
            if sample == f"{name}_bucket":
                buckets[key][float(told["le"])] = value
            elif sample == f"{name}_sum":
                sums[key] = value
        calls = buckets.get(target.whole, {}).get(math.inf, 0.0)
        return {key: _spread(found, sums[key], calls) for key, found in buckets.items() if found.get(math.inf)}


def parse(texts: Sequence[str]) -> Page:
    """Read pages and add them up.

    Raises:
        ValueError: One is no Prometheus page.
    """
    values: dict[tuple[str, Labels], float] = defaultdict(float)
    families = set()
    for text in texts:
        for family in text_string_to_metric_families(text):
            families.add(family.name)
            for sample in family.samples:
                values[sample.name, frozenset(sample.labels.items())] += sample.value
    return Page(values=values, families=frozenset(families))


async def fetch(addresses: Sequence[str], target: Target) -> Page:
    """Read the pages of all processes of the target's server.

    Args:
        addresses: HOST:PORT or URL of each.
        target: Whose counters have to be on them.

    Raises:
        Misconfigured: One cannot be read, or the counters are on none.
    """
    page = parse([await asyncio.to_thread(_get, address) for address in addresses])
    if f"{target.server}_calls" not in page.families:
        where = ", ".join(addresses)
        raise Misconfigured("METRICS_OTHER", f"no {target.server}_calls_total on {where}: not the {target.server}'s")
    return page


async def fetch_settled(addresses: Sequence[str], target: Target, *, before: Page, expected: int) -> Page:
    """Read the pages until they count as many calls more than before as expected, or for two seconds.

    Raises:
        Misconfigured: As `fetch` and `Page.since`.
    """
    for _ in range(SETTLE_TRIES):
        page = await fetch(addresses, target)
        if sum(page.since(before).calls(target).values()) >= expected:
            break
        await asyncio.sleep(SETTLE_S)
    return page


def _get(address: str) -> str:
    url = address if address.startswith(("http://", "https://")) else f"http://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:  # noqa: S310 - by HTTP only, see above
            text: str = answer.read().decode("utf-8")
    except (OSError, ValueError) as error:
        raise Misconfigured("METRICS_UNREADABLE", f"no Prometheus page at {address}; set the metrics port") from error
    return text


def _spread(buckets: Mapping[float, float], seconds: float, calls: float) -> Spread:
    """Describe a histogram of so many calls; those that were not observed are its smallest."""
    zeros = max(0.0, calls - buckets[math.inf])
    buckets = {bound: upto + zeros for bound, upto in buckets.items()}
    count = buckets[math.inf]
    p50, p95, p99 = (quantile(buckets, share) * MS for share in (0.5, 0.95, 0.99))
    return Spread(count=round(count), mean=seconds / count * MS, p50=p50, p95=p95, p99=p99)


def quantile(buckets: Mapping[float, float], share: float) -> float:
    """Return the value below which a share of the observations lies, straight lines within buckets.

    Args:
        buckets: Upper bound -> observations up to it, infinity included.
        share: 0 to 1.

    Source: what Prometheus's `histogram_quantile` does.
    """
    wanted, lower, below = share * buckets[math.inf], 0.0, 0.0
    for bound, upto in sorted(buckets.items()):
        if upto >= wanted and upto > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (wanted - below) / (upto - below)
        if not math.isinf(bound):
            lower, below = bound, upto
    return lower
