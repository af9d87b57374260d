"""The command that makes a run's figures again."""

from report_factories import provenance

from evaluation.records import Configuration
from evaluation.report.command import command


def test_defaults_are_not_written():
    """The help centre with the tutorial's configuration is the bare command."""
    assert command(provenance()) == "twostage evaluate all"


def test_what_was_chosen_is_written():
    """Everything that differs from the default is in the command, and a name with a space stays one word."""
    chosen = Configuration(pool_size=50, passage="title+text", truncation="only_passage", seed=3, question_limit=100)
    run = provenance(corpus="my set").model_copy(update={"configuration": chosen})
    assert command(run) == (
        "twostage evaluate all --dataset 'my set' --pool-size 50 --passage title+text --truncation only_passage "
        "--limit 100 --seed 3"
    )
