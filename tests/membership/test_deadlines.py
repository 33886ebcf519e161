"""The heap of deadlines against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2psync.membership.deadlines import Deadlines

_NAMES = st.sampled_from("abcdef")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _NAMES, st.integers(0, 20)),
        st.tuples(st.just("discard"), _NAMES, st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.integers(0, 20)),
    )
)


@given(_STEPS)
def test_deadlines_agree_with_a_dictionary(steps: list[tuple[str, str, int]]) -> None:
    deadlines, model = Deadlines(), {}
    for step, name, when in steps:
        if step == "set":
            deadlines.set(name, when)
            model[name] = when
        elif step == "discard":
            deadlines.discard(name)
            model.pop(name, None)
        else:
            due = deadlines.pop_due(when)
            assert sorted(due) == sorted(n for n, t in model.items() if t <= when)
            assert [model[n] for n in due] == sorted(model[n] for n in due)
            model = {n: t for n, t in model.items() if t > when}
        assert deadlines.next() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
        assert {n for n in "abcdef" if n in deadlines} == set(model)


def test_discarded_names_do_not_accumulate() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.set(str(number), 1e9)
        deadlines.discard(str(number))
    assert len(deadlines._heap) < 200
