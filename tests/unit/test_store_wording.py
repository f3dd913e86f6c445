"""Counts and sizes in what a purge and the command line tell."""

import pytest

from carnator_core.store.eviction import Purged
from carnator_core.store.wording import size_text


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (45_600, "46 kB"),
        (999_700, "1.0 MB"),
        (4_300_000, "4.3 MB"),
        (9_960_000, "10 MB"),
        (12.4e9, "12 GB"),
        (1.25e12, "1250 GB"),
    ],
)
def test_a_size_has_up_to_three_digits_in_the_units_of_the_panel(size: float, told: str) -> None:
    assert size_text(size) == told


def test_one_entry_is_no_plural_and_a_small_size_is_not_zero() -> None:
    assert Purged(1, 4_300_000, 0, 0).sentence == "1 entry deleted, 4.3 MB"
    assert Purged(2, 8_600_000, 1, 2, 1).sentence == (
        "2 entries and 1 consensus file deleted, 8.6 MB; kept: 1 pinned, 2 in use"
    )
