"""A short run of the fuzzer; `python -m tests.delta.fuzz` is the long one."""

import fuzz
import fuzz_tight
import pytest
from fuzz_samples import make_pool


@pytest.mark.parametrize("seed", [1, 2])
def test_fuzzed_inputs_give_valid_blocks_or_one_typed_error(seed):
    report = fuzz.run(seed, 0, 1500)
    assert not report.faults, report.faults[0]
    assert report.inputs == 1500
    # Nothing would be tried in earnest if all were refused, or if few reasons were found.
    assert report.accepted > 100
    assert len(report.errors) > 40


def test_fuzzed_input_follows_from_seed_and_number():
    pool = make_pool(3, 4)
    made = [fuzz.fuzz_mutations.draw(fuzz.random.Random(9), pool) for _ in range(2)]
    assert made[0].data == made[1].data and made[0].how == made[1].how


def test_fuzzer_splits_tight_chunks_with_and_without_history():
    found = [data for seed in range(3) for sample in make_pool(seed, 12) for data in sample.chunks if data[1] in (2, 3)]
    assert {data[1] for data in found} == {2, 3}
    for data in found:
        assert fuzz_tight.put_together(fuzz_tight.take_apart(data)) == data


def test_fuzzer_finds_a_planted_fault():
    """Plants an error of another type, and blocks that break a promise."""
    report = fuzz.Report()
    for wrong in (ValueError("no"), AssertionError(), MemoryError(), fuzz.FormatError("two\nlines")):

        def judge(error=wrong):
            raise error

        fuzz._try(report, 7, "made up", judge)
    assert len(report.faults) == 4
