"""The command that makes a run's figures again, out of what the run says about itself."""

import shlex

from evaluation.datasets.jsonl import HELPCENTRE
from evaluation.records import Configuration, Provenance


def command(provenance: Provenance) -> str:
    """Return a command line; only what is not the default is in it.

    Args:
        provenance: Of the run. A data set of the user's own is in it by name, not by where it lies.
    """
    chosen = provenance.configuration
    defaults = Configuration(pool_size=20)
    words = ["twostage", "evaluate", "all"]
    if provenance.corpus.name != HELPCENTRE:
        words += ["--dataset", provenance.corpus.name]
    for option, value, default in (
        ("--pool-size", chosen.pool_size, defaults.pool_size),
        ("--passage", chosen.passage, defaults.passage),
        ("--truncation", chosen.truncation, defaults.truncation),
        ("--limit", chosen.question_limit, defaults.question_limit),
        ("--seed", chosen.seed, defaults.seed),
    ):
        if value != default:
            words += [option, str(value)]
    return shlex.join(words)
