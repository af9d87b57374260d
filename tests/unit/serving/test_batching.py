"""The batching policy: examples to read; `test_batching_histories.py` plays whole histories against it."""

from collections import Counter

import pytest

from serving.batching import BULK_EVERY, Batch, BatchLimits, BatchPolicy, Priority, Waiting
from serving.cost import Cost, CostModel

FOREVER = 1e9
INTERACTIVE, BULK = Priority.INTERACTIVE, Priority.BULK


def limits(
    *, tokens: int = 100, rows: int = 8, waiting: int = 1000, delay: float = 0.0, window: int = 8
) -> BatchLimits:
    """Make limits with small round defaults."""
    return BatchLimits(
        max_batch_tokens=tokens, max_batch_rows=rows, max_waiting_tokens=waiting, max_delay=delay, window=window
    )


def policy(
    *, fixed: float = 0.0, per_token: float = 0.0, per_row: float = 0.0, of: BatchLimits | None = None
) -> BatchPolicy[str]:
    """Make a policy to which a batch costs this; nothing is learned."""
    costs = CostModel()
    costs.cost = Cost(fixed=fixed, per_token=per_token, per_row=per_row)
    return BatchPolicy(of or limits(), costs)


def row(
    name: str, length: int, *, arrived: float = 0.0, deadline: float = FOREVER, priority: Priority = INTERACTIVE
) -> Waiting[str]:
    """Make a row that waits."""
    return Waiting(name, length, arrived=arrived, deadline=deadline, priority=priority)


def names(rows: list[Waiting[str]]) -> list[str]:
    """Name rows, sorted."""
    return sorted(waiting.row for waiting in rows)


def lengths(batch: Batch[str]) -> list[int]:
    """Tell the lengths of a batch, sorted."""
    return sorted(waiting.length for waiting in batch.rows)


# --- which rows go together -----------------------------------------------------------------------------------------


def test_the_oldest_row_takes_along_those_nearest_in_length():
    """Of rows that would all fit with the oldest one alone, the like ones are taken and the budget ends the batch."""
    one = policy(fixed=1.0, per_token=0.1, of=limits(tokens=40))
    one.add([row("old 10", 10), row("long", 90), row("ten", 10), row("nine", 9), row("thirteen", 13)])
    assert names(one.next_batch(1.0).rows) == ["nine", "old 10", "ten"]


def test_padding_counts():
    """The cost of a batch is its rows times its longest row: 10 and 16 tokens are 32, not 26 (field failure 43)."""
    for budget, padded in ((32, 32), (31, 10)):
        one = policy(fixed=1.0, per_token=0.01, of=limits(tokens=budget))
        one.add([row("a", 10), row("b", 16)])
        assert one.next_batch(0.0).padded_tokens == padded


@pytest.mark.parametrize(
    ("fixed", "taken"),
    [(0.5, [20, 20, 20]), (5.0, [15, 20, 20, 20]), (14.0, [15, 20, 20, 20]), (15.0, [10, 15, 20, 20, 20])],
)
def test_a_batch_holds_as_much_padding_as_its_fixed_cost_would_pay_for(fixed: float, taken: list[int]):
    """At 1 s per token, 5 s before the first token pay for 5 tokens of padding in the batch; 14 s do not pay for 15."""
    one = policy(fixed=fixed, per_token=1.0)
    one.add([row("a", 20), row("b", 20), row("c", 20), row("d", 15), row("e", 10)])
    assert lengths(one.next_batch(0.0)) == taken


def test_the_padding_of_all_rows_together_is_what_counts():
    """Each of three shorter rows would pay for itself; together they would cost more than a batch of their own."""
    one = policy(fixed=6.0, per_token=1.0)
    one.add([row("long", 20), *(row(f"short {index}", 15) for index in range(3))])
    assert lengths(one.next_batch(0.0)) == [15, 20]
    assert lengths(one.next_batch(0.0)) == [15, 15]


def test_a_longer_row_pads_all_the_others():
    """A row 2 tokens longer than 4 others brings 8 tokens of padding: one too many for a fixed cost of 7."""
    for fixed, count in ((7.0, 4), (8.0, 5)):
        one = policy(fixed=fixed, per_token=1.0)
        one.add([*(row(f"ten {index}", 10) for index in range(4)), row("twelve", 12)])
        assert len(one.next_batch(0.0).rows) == count


def test_before_costs_are_known_only_all_but_equal_rows_go_together():
    """Without a measured cost a batch holds 2 % of padding."""
    one = policy(of=limits(tokens=1000))
    one.add([row("a", 100), row("b", 98), row("c", 95)])
    assert lengths(one.next_batch(0.0)) == [98, 100]


def test_a_row_over_the_budget_leaves_alone():
    """A row longer than a whole batch is computed by itself instead of never."""
    one = policy(fixed=100.0, per_token=1.0, of=limits(tokens=50))
    one.add([row("giant", 80), row("small", 2), row("giant too", 80)])
    assert [names(one.next_batch(0.0).rows) for _ in range(3)] == [["giant"], ["small"], ["giant too"]]


def test_rows_that_are_left_keep_their_order():
    """Rows that a batch passes over are still the oldest in the next."""
    one = policy(of=limits(rows=2))
    one.add([row("a", 10), row("b", 50), row("c", 10), row("d", 50), row("e", 10)])
    assert [names(one.next_batch(0.0).rows) for _ in range(3)] == [["a", "c"], ["b", "d"], ["e"]]


def test_the_window_ends_what_may_overtake():
    """With a window of one batch, a row that came a batch later is not taken before those in between."""
    for window, taken in ((1, ["a"]), (2, ["a", "like a"])):
        one = policy(of=limits(tokens=40, window=window))
        one.add([row("a", 10), row("b", 30), row("like a", 10)])
        assert names(one.next_batch(0.0).rows) == taken


def test_the_window_counts_rows_too():
    """A window of one batch of two rows ends after two rows, however few tokens they have."""
    one = policy(of=limits(rows=2, window=1))
    one.add([row("a", 10), row("b", 30), row("like a", 10)])
    assert names(one.next_batch(0.0).rows) == ["a"]


def test_of_like_rows_the_older_go_first():
    """Within a sixteenth of the length age decides, so that requests of many rows end; beyond it length does."""
    for length, taken in ((165, ["a", "older"]), (175, ["a", "younger"])):
        one = policy(fixed=20.0, per_token=1.0, of=limits(tokens=350))
        one.add([row("a", 160), row("older", length), row("younger", 160)])
        assert names(one.next_batch(0.0).rows) == taken


# --- deadlines ------------------------------------------------------------------------------------------------------


def test_an_expired_row_is_reported_and_not_computed():
    """A row whose deadline has come is handed back as expired (field failure 10)."""
    one = policy()
    one.add([row("late", 5, deadline=1.0), row("timely", 5, deadline=1.1)])
    batch = one.next_batch(1.0)
    assert (names(batch.rows), names(batch.expired)) == (["timely"], ["late"])


def test_a_row_that_cannot_be_in_time_is_not_computed_while_others_can():
    """Where a row needs 1 s and has half of one, it is handed back and the other one computed."""
    one = policy(fixed=1.0)
    one.add([row("late", 5, deadline=0.5), row("timely", 5, deadline=1.5)])
    batch = one.next_batch(0.0)
    assert (names(batch.rows), names(batch.expired)) == (["timely"], ["late"])


def test_a_late_interactive_row_does_not_keep_a_timely_bulk_row_waiting():
    """What cannot be in time goes after everything that can, whatever its priority."""
    one = policy(fixed=1.0)
    one.add([row("late", 5, deadline=0.5), row("bulk", 5, priority=BULK)])
    batch = one.next_batch(0.0)
    assert (names(batch.rows), names(batch.expired)) == (["bulk"], ["late"])


def test_an_idle_device_tries_the_row_with_the_latest_deadline():
    """Where nothing can be in time by the prediction, one row is computed, since the prediction may be wrong."""
    one = policy(fixed=10.0)
    one.add([row("a", 5, deadline=1.0), row("b", 5, deadline=3.0, priority=BULK), row("c", 5, deadline=2.0)])
    batch = one.next_batch(0.0)
    assert (names(batch.rows), names(batch.expired)) == (["b"], ["a", "c"])
    assert len(one) == 0


def test_a_row_in_a_hurry_keeps_the_batch_small():
    """Rows that would make the batch end after the deadline of one of them wait for the next batch."""
    one = policy(fixed=1.0, per_token=0.1)
    one.add([row("hurried", 10, deadline=3.0), row("b", 10), row("c", 10)])
    assert names(one.next_batch(0.0).rows) == ["b", "hurried"]
    assert names(one.next_batch(3.0).rows) == ["c"]


def test_a_batch_waits_for_no_row_that_it_would_make_late():
    """A row that is in time alone, but not in this batch, is left for the next."""
    one = policy(fixed=1.0, per_token=0.1)
    one.add([row("a", 10), row("b", 10), row("tight", 10, deadline=3.5)])
    assert names(one.next_batch(0.0).rows) == ["a", "b"]


# --- priorities -----------------------------------------------------------------------------------------------------


def test_one_batch_in_so_many_is_bulk_while_both_wait():
    """Interactive rows go first, and bulk rows get every BULK_EVERY-th batch."""
    one = policy(of=limits(rows=1))
    one.add(row("interactive", 10) for _ in range(4 * BULK_EVERY))
    one.add(row("bulk", 10, priority=BULK) for _ in range(4))
    taken = [one.next_batch(0.0).rows[0].row for _ in range(4 * BULK_EVERY)]
    assert taken == (["interactive"] * (BULK_EVERY - 1) + ["bulk"]) * 4


def test_bulk_rows_ride_along_as_far_as_the_fixed_cost_pays():
    """Bulk rows no longer than the batch join it up to its fixed cost, here 25 tokens, so two rows of 10."""
    one = policy(fixed=25.0, per_token=1.0)
    one.add(row(f"bulk {index}", 10, priority=BULK) for index in range(5))
    one.add([row("long bulk", 11, priority=BULK), row("query", 10)])
    assert names(one.next_batch(0.0).rows) == ["bulk 0", "bulk 1", "query"]


def test_each_priority_has_a_queue_limit_of_its_own():
    """Bulk rows that fill their queue leave the interactive one empty, and the other way round."""
    one = policy(of=limits(waiting=10))
    one.add([row("bulk", 10, priority=BULK)])
    assert (one.has_room(1, BULK), one.has_room(10, INTERACTIVE)) == (False, True)
    one.add([row("query", 10)])
    assert not one.has_room(1, INTERACTIVE)


def test_an_empty_queue_has_room_for_a_request_of_any_size():
    """A request larger than the queue is let in where it harms nobody, and refused where others wait."""
    one = policy(of=limits(waiting=10))
    assert one.has_room(500)
    one.add([row("a", 4)])
    assert (one.has_room(6), one.has_room(7)) == (True, False)


# --- abandoning -----------------------------------------------------------------------------------------------------


def test_an_abandoned_row_gives_its_tokens_back_at_once_and_vanishes():
    """A row that nobody wants any more is neither computed nor reported, expired or not."""
    one = policy(of=limits(waiting=10))
    gone = [row("gone", 5), row("gone and late", 5, deadline=0.0)]
    one.add(gone)
    assert not one.has_room(1)
    one.abandon(gone)
    assert (one.waiting_tokens, len(one), one.has_room(10), one.oldest_arrival(), one.due(0.0)) == (
        0,
        0,
        True,
        None,
        None,
    )
    assert one.next_batch(0.0) == Batch()


def test_abandoning_twice_or_after_the_row_was_taken_counts_once():
    """Books balance however often a row is given up."""
    one = policy()
    both = [row("a", 5), row("b", 50)]
    one.add(both)
    assert names(one.next_batch(0.0).rows) == ["a"]
    one.abandon(both)
    one.abandon(both)
    assert (one.waiting_tokens, len(one)) == (0, 0)


def test_a_queue_of_abandoned_rows_does_not_grow():
    """Rows that come and are given up are forgotten though no batch is ever taken."""
    one = policy(of=limits(rows=4))
    stays = row("stays", 5)
    one.add([stays])
    for index in range(100):
        gone = row(f"gone {index}", 5)
        one.add([gone])
        one.abandon([gone])
    assert len(one._queues[INTERACTIVE]) <= 10
    assert names(one.next_batch(0.0).rows) == ["stays"]


# --- when -----------------------------------------------------------------------------------------------------------


def test_an_idle_device_waits_until_the_oldest_row_has_waited_the_delay():
    """A batch that is not full is due when its oldest row has waited max_delay, and at once without one."""
    assert policy().due(0.0) is None
    for delay, due in ((0.0, 0.0), (2.0, 0.5)):
        one = policy(of=limits(delay=delay))
        one.add([row("b", 5, arrived=10.5, priority=BULK), row("a", 5, arrived=10.0)])
        assert one.due(11.5) == due
        assert one.due(13.0) == 0.0


@pytest.mark.parametrize(("tokens", "rows", "full"), [(49, 2, False), (50, 2, True), (10, 3, True)])
def test_a_full_batch_waits_for_nobody(tokens: int, rows: int, *, full: bool):
    """Once the tokens or the rows of a whole batch wait, of whichever priority, it is due."""
    one = policy(of=limits(tokens=100, rows=3, delay=9.0))
    one.add(row(f"{index}", tokens, priority=Priority(index % 2)) for index in range(rows))
    assert (one.full(), one.due(0.0)) == (full, 0.0 if full else 9.0)


def test_the_wait_is_predicted_from_what_goes_first():
    """Interactive rows wait for interactive ones, bulk rows for all, per batch, token and row; nothing known is 0."""
    one = policy(fixed=1.0, per_token=0.1, per_row=0.01, of=limits(tokens=10))
    assert one.seconds_until_done(5, 1) == pytest.approx(1 + 0.5 + 0.01)
    one.add([row("query", 15), row("bulk", 30, priority=BULK)])
    assert one.seconds_until_done(5, 1, INTERACTIVE) == pytest.approx(2 + 2 + 0.02)
    assert one.seconds_until_done(5, 1, BULK) == pytest.approx(5 + 5 + 0.03)
    assert policy().seconds_until_done(5, 1) == 0


def test_who_comes_too_close_to_the_deadline_is_not_let_in():
    """The prediction and a quarter more has to fit; with nobody before them rows are tried whatever it says."""
    one = policy(per_token=0.1, of=limits(tokens=10))
    assert one.in_time(5, 1, 0.0)
    one.add([row("query", 15)])
    assert one.in_time(5, 1, 2.5)
    assert not one.in_time(5, 1, 2.4)
    assert one.in_time(5, 1, 2.5, BULK)
    one.add([row("bulk", 20, priority=BULK)])
    assert one.in_time(5, 1, 2.5)
    assert not one.in_time(5, 1, 4.9, BULK)


def test_rows_count_as_batches_where_they_are_short():
    """Sixteen rows of one token are two batches of eight rows, though their tokens are a fraction of one."""
    assert policy(fixed=1.0).seconds_until_done(16, 16) == pytest.approx(2.0)


def test_two_instances_halve_the_wait():
    """Where two batches are computed at a time the queue is done in half the time."""
    costs = CostModel()
    costs.cost = Cost(fixed=1.0)
    assert BatchPolicy(limits(tokens=10), costs, instances=2).seconds_until_done(40, 4) == pytest.approx(2.0)


# --- the end --------------------------------------------------------------------------------------------------------


def test_taking_all_empties_the_queue():
    """What is taken at the end is everything that is still wanted, in order of arrival, the interactive rows first."""
    one = policy()
    gone = row("gone", 6)
    one.add([row("bulk", 3, priority=BULK), row("a", 4), gone, row("b", 5)])
    one.abandon([gone])
    assert [waiting.row for waiting in one.take_all()] == ["a", "b", "bulk"]
    assert (len(one), one.waiting_tokens) == (0, 0)
    assert one.next_batch(0.0) == Batch()


def test_equal_rows_are_told_apart():
    """Rows are what they are and not what they look like: two alike are both taken, once each."""
    one = policy()
    one.add([row("same", 5), row("same", 5)])
    batch = one.next_batch(0.0)
    assert Counter(id(waiting) for waiting in batch.rows).most_common(1)[0][1] == 1
    assert len(batch.rows) == 2


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"rows": 0}, {"waiting": 0}, {"delay": -1.0}, {"window": 0}])
def test_limits_that_allow_nothing_are_refused(wrong: dict[str, int]):
    """A limit under 1 would never let a row out."""
    with pytest.raises(ValueError, match="at least"):
        limits(**wrong)
