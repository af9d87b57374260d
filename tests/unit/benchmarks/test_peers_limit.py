"""How the bare limit packs its rows."""

from benchmarks.peers.limit_worker import pack
from serving.tokens import Tokens


def row(length: int) -> Tokens:
    return Tokens([1] * length, untruncated_count=length)


def test_rows_are_packed_sorted_within_the_budget() -> None:
    """Rows x longest row stays within the budget, every row is in one batch, and lengths never fall."""
    lengths = [9, 3, 30, 5, 4, 8, 10, 31]
    batches = list(pack([row(one) for one in lengths], 40))
    assert [[len(one) for one in batch] for batch in batches] == [[3, 4, 5, 8], [9, 10], [30], [31]]


def test_a_row_over_the_budget_is_a_batch_of_its_own() -> None:
    """Nothing is left out for being long."""
    assert [[len(one) for one in batch] for batch in pack([row(50), row(2), row(60)], 40)] == [[2], [50], [60]]
