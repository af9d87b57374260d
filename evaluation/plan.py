"""What a run is about, and the provenance that every file of it carries."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from evaluation.datasets.model import Dataset, Document
from evaluation.records import Configuration, Corpus, Provenance
from serving.cpu import usable_cpus

PACKAGES = ("twostage", "grpcio", "numpy", "protobuf", "pydantic", "scikit-learn", "scipy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is about."""

    dataset: Dataset
    outputs: Path
    configuration: Configuration
    collection: str = ""
    """A collection to make; empty gives it a name of its own, which is made anew each time."""

    @property
    def collection_name(self) -> str:
        """Name of the collection."""
        return self.collection or f"eval-{self.dataset.name}-{self.dataset.digest[7:15]}-{self._passage}"[:128]

    @property
    def corpus(self) -> Corpus:
        """Which data."""
        return Corpus(name=self.dataset.name, digest=self.dataset.digest, population=self.dataset.population)

    def passage(self, document: Document) -> str:
        """Return what of a document is encoded and reranked."""
        whole = self.configuration.passage == "title+text" and document.title.strip()
        return f"{document.title}\n{document.text}" if whole else document.text

    def provenance(self) -> Provenance:
        """Return what is known before any server is asked."""
        return Provenance(corpus=self.corpus, configuration=self.configuration, versions=versions(), machine=machine())

    @property
    def _passage(self) -> str:
        return self.configuration.passage.replace("+", "-")


def versions() -> Mapping[str, str]:
    """Return the versions of what shapes figures on this side of the wire."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return dict(sorted(found.items()))


def machine() -> str:
    """Return processor and usable CPUs, for people."""
    return f"{_processor()}, {usable_cpus()} usable CPUs"


def _processor() -> str:
    try:
        rows = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = (row.partition(":")[2].strip() for row in rows if row.startswith("model name"))
    return next(names, platform.machine())
