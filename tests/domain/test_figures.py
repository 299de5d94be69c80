"""Counters and histograms are exact, and never more than a bound."""

from gateway.domain.figures import OTHER, Figures, Histogram, LabelValues, Series, SeriesQuota


def test_an_observation_is_in_the_first_bucket_that_holds_it() -> None:
    spread = Histogram("s", "", (), SeriesQuota(), (1, 2, 5))
    for seconds in (0.5, 1, 1.5, 5, 6):
        spread.observe((), seconds)

    assert spread.rows == {(): [2, 1, 1, 1, 14.0]}


def test_series_beyond_the_bound_are_dropped_and_counted() -> None:
    quota = SeriesQuota(left=7)
    counter, spread = Series("c", "", ("a",), quota), Histogram("s", "", ("a",), quota, (1, 2))
    counter.add(("x",))
    spread.observe(("x",), 1)  # two buckets, one beyond, sum and count
    counter.add(("y",))
    counter.add(("z",))
    spread.observe(("y",), 1)
    counter.add(("x",), 2)

    assert counter.values == {("x",): 3, ("y",): 1}
    assert list(spread.rows) == [("x",)]
    assert quota.dropped == 2


def test_names_that_others_choose_end_in_other() -> None:
    names = LabelValues(most=2)

    assert [names.of(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_no_label_of_a_series_names_a_person_or_a_run() -> None:
    labels = {label for family in Figures().families() for label in family.labels}

    assert labels == {"agent", "channel", "reason", "provider", "model", "outcome", "kind", "tool"}
