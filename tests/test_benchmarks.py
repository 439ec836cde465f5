"""The arithmetic of the benchmarks, and whether the deliberate bugs still apply."""

import pytest

from benchmarks.mutants import MUTANTS, ROOT, Mutant, home_of
from benchmarks.pretrain import share_time


def test_kernels_that_run_side_by_side_share_the_time():
    shares, alone = share_time([("a", 0, 10), ("b", 4, 6), ("a", 5, 8), ("c", 20, 21)])
    # a alone until 4, with b until 5, twice with b until 6, twice until 8, alone until 10; nothing until 20.
    assert shares == pytest.approx({"a": 4 + 1 / 2 + 2 / 3 + 2 + 2, "b": 1 / 2 + 1 / 3, "c": 1})
    assert alone == 4 + 2 + 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_bug_can_still_be_put_in_and_has_tests(mutant: Mutant):
    home_of(mutant.before)
    assert mutant.before != mutant.after
    assert [name for name in mutant.tests.split() if not (ROOT / "tests" / name).exists()] == []


def test_deliberate_bugs_have_names_of_their_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
