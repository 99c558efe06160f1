"""The space of valid configurations, against brute force; sampling, neighbours, membership, identity."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spaces import SGEMM, SGEMM_RULES, brute_force, space, walk
from tuner_daemon.errors import KernelError
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.space import Config

# --- enumeration


def test_a_space_lists_exactly_what_python_would() -> None:
    problem: dict[str, Value] = {"m": 64, "n": 192}
    listed = space(SGEMM, SGEMM_RULES, problem)
    expected = brute_force(SGEMM, SGEMM_RULES, problem)
    assert [config.values for config in listed.all()] == expected
    assert listed.size == len(expected) > 100
    assert (listed.size_exact, listed.listed) == (True, True)
    assert listed.first() == listed.all()[0]


def test_block_equals_tiles_over_work_keeps_only_equal_products() -> None:
    """Regression: ``/`` for ``//``, or bounds of half-decided rules, would lose or add configurations here."""
    parameters: dict[str, list[Value]] = {
        "block": [2, 4, 6, 8],
        "BM": [4, 6, 8],
        "BN": [4, 6, 9],
        "TM": [1, 2, 3],
        "TN": [2, 4, 5],
    }
    rules = ["block == (BM//TM)*(BN//TN)"]
    expected = brute_force(parameters, rules, {})
    assert [config.values for config in space(parameters, rules).all()] == expected
    inexact = brute_force(parameters, ["block == (BM/TM)*(BN/TN)"], {})
    assert len(expected) > len(inexact) > 0


SMALL = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True),
    min_size=4,
    max_size=4,
)
TERMS = st.sampled_from(["a", "b", "c", "d", "n", "2", "(a + b)", "(c * d)", "(b // c)", "(a % d)", "(c - a)"])
LINKS = st.builds("{} {} {}".format, TERMS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), TERMS)
RULES = st.one_of(
    LINKS,
    st.builds("{} <= {} < {}".format, TERMS, TERMS, TERMS),
    st.builds("{} or {} and {}".format, LINKS, LINKS, LINKS),
    st.builds("not ({}) and ({})".format, LINKS, LINKS),
    st.builds("b != 0 and {} % b == 0".format, TERMS),
)


@settings(max_examples=120, deadline=None)
@given(parameters=SMALL, rules=st.lists(RULES, max_size=3), tabulated=st.booleans())
def test_any_constraints_leave_what_python_says(
    parameters: dict[str, list[Value]], rules: list[str], tabulated: bool
) -> None:
    expected = brute_force(parameters, rules, {"n": 6})
    with pytest.MonkeyPatch.context() as patch:
        if not tabulated:  # as for constraints over too many combinations: bounds prune, then each is evaluated
            patch.setattr("tuner_daemon.records._rules.TABLE_LIMIT", 0)
        if not expected:
            with pytest.raises(KernelError, match="leaves no configuration"):
                space(parameters, rules, {"n": 6})
            return
        listed = space(parameters, rules, {"n": 6})
    assert [config.values for config in listed.all()] == expected


@settings(max_examples=60, deadline=None)
@given(parameters=SMALL, rules=st.lists(RULES, max_size=3), seed=st.integers(0, 99), listed=st.booleans())
def test_what_any_walk_or_draw_gives_is_valid(
    parameters: dict[str, list[Value]], rules: list[str], seed: int, listed: bool
) -> None:
    expected = set(brute_force(parameters, rules, {"n": 6}))
    if not expected:
        return
    some = space(parameters, rules, {"n": 6}, list_limit=2_000_000 if listed else 3)
    rng = np.random.default_rng(seed)
    order = [some.parameters[j].name for j in rng.permutation(4)]
    found = walk(some.walker(order), 16, rng) + some.sample(8, rng)
    found += some.neighbours(some.first(), rng, 8) + some.decode(rng.uniform(-1, 1, (4, 4)).astype(np.float32))
    assert {config.values for config in found} <= expected
    assert len(found) > 4 or len(expected) < 5 or not listed


def test_an_unsatisfiable_space_names_the_constraint_that_empties_it() -> None:
    with pytest.raises(KernelError) as caught:
        space(SGEMM, ["BM >= 64", "BM * 2 <= 64", "TM > 0"])
    assert '"BM * 2 <= 64" leaves no configuration of k' in str(caught.value)
    with pytest.raises(KernelError, match=r'"m % 7 == 0" leaves no configuration of k at m = 8'):
        space(SGEMM, ["m % 7 == 0"], {"m": 8})
    assert space(SGEMM, ["m % 7 == 0"], {"m": 14}).size > 0


def test_a_problem_value_that_a_constraint_needs_must_be_there() -> None:
    with pytest.raises(KernelError, match='unknown name "m"'):
        space(SGEMM, ["m % BM == 0"])


def test_text_mixed_with_numbers_is_refused() -> None:
    with pytest.raises(KernelError, match=r"parameters\.P must be all text or all numbers"):
        space({"P": [1, "auto"]}, ["P == 1"])


def test_a_million_combinations_take_less_than_a_second() -> None:
    """In the best of three: the machine may be busy with other tests."""
    parameters = {f"p{i}": list(range(1, 11)) for i in range(6)}
    rules = ["p0 + p1 + p2 + p3 + p4 + p5 <= 30", "p0 * p1 <= 40"]

    def took_s() -> float:
        started_s = time.monotonic()
        assert 100_000 < space(parameters, rules).size < 1_000_000
        return time.monotonic() - started_s

    assert min(took_s() for _ in range(3)) < 1.0  # 0.05 s on an idle core


# --- spaces too large to list

LARGE = {f"p{i}": list(range(1, 11)) for i in range(12)}
SUM = " + ".join(LARGE)


@pytest.mark.parametrize(
    ("rules", "size"),
    [
        ([], 10**12),
        (["p0 * p1 < 20", "p2 > p3"], 42 * 45 * 10**8),
        (["p0 == p5", "p5 == p11"], 10**10),
        ([f"p{i} <= p{i + 1}" for i in range(3)], 715 * 10**8),
        ([f"{SUM} == 20"], 75_582),  # compositions of 20 into 12 parts: C(19, 11)
        ([f"{SUM} == 13"], 12),
    ],
)
def test_a_huge_space_is_counted_exactly_by_parts(rules: list[str], size: int) -> None:
    started = time.monotonic()
    huge = space(LARGE, rules)
    assert (huge.size, huge.size_exact) == (size, True)
    assert time.monotonic() - started < 20.0


def test_the_count_by_parts_is_that_of_brute_force_in_small() -> None:
    small = {name: values[:3] for name, values in list(LARGE.items())[:4]}
    rules = ["p0 * p1 < 5", "p2 > p3"]
    assert space(small, rules).size == len(brute_force(small, rules, {})) == 6 * 3


@pytest.mark.parametrize("rules", [[], [f"p{i} != p{i + 1}" for i in range(11)], [f"{SUM} < 40"]])
def test_a_huge_space_is_drawn_from_checked_and_walked_without_listing(rules: list[str]) -> None:
    huge, rng = space(LARGE, rules), np.random.default_rng(1)
    drawn = huge.sample(100, rng)
    assert len(set(drawn)) == 100
    near = huge.neighbours(drawn[0], rng, 50)
    walked = walk(huge.walker(list(LARGE)[::-1]), 100, rng)
    assert len(near) == 50
    assert len(walked) >= 95
    for config in [*drawn, *near, *walked, huge.first()]:
        assert all(brute_force({n: [v] for n, v in config.as_dict().items()}, rules, {}))
        assert huge.contains(config)
    assert huge.decode(huge.encode(drawn)) == drawn
    assert not huge.listed
    with pytest.raises(ValueError, match="is not listed"):
        huge.all()


def test_the_size_of_a_part_too_large_to_list_is_estimated_closely() -> None:
    parameters = {f"p{i}": list(range(1, 9)) for i in range(5)}
    rules = ["p0 + p1 + p2 + p3 + p4 <= 20", "p0 != p4"]
    exact = space(parameters, rules)
    rough = space(parameters, rules, list_limit=500)
    assert exact.size_exact
    assert not rough.size_exact
    assert abs(rough.size / exact.size - 1) < 0.1
    assert rough.first() == exact.first()


def test_a_needle_in_a_haystack_is_found() -> None:
    """Where completing prefixes at random finds nothing, constraint propagation does."""
    hay = space(LARGE, [" * ".join(LARGE) + " == 3"], list_limit=4)
    found = hay.sample(3, np.random.default_rng(0))
    assert found
    assert all(sorted(config.values)[-1] == 3 for config in found)


# --- drawing


def _chi_square(counts: Sequence[int], cells: int) -> float:
    expected = sum(counts) / cells
    return float(sum((count - expected) ** 2 for count in counts) / expected + (cells - len(counts)) * expected)


@pytest.mark.parametrize("list_limit", [2_000_000, 20])
def test_sampling_is_uniform_and_walking_is_not(list_limit: int) -> None:
    parameters: dict[str, list[Value]] = {"a": list(range(6)), "b": list(range(6)), "c": list(range(6))}
    rules = ["a + b + c <= 4", "b != c"]
    cells = len(brute_force(parameters, rules, {}))
    some, rng = space(parameters, rules, list_limit=list_limit), np.random.default_rng(7)
    assert some.size_exact is (list_limit > 20)
    draws = Counter(some.sample(1, rng)[0] for _ in range(100 * cells // 4))
    walks = Counter(walk(some.walker(["a", "b", "c"]), 25 * cells, rng))
    limit = cells + 5 * (2 * cells) ** 0.5  # mean + 5 standard deviations
    assert _chi_square(list(draws.values()), cells) < limit
    assert _chi_square(list(walks.values()), cells) > limit  # negative control


def test_a_sample_is_distinct_and_at_most_the_whole_space() -> None:
    some, rng = space({"a": [1, 2, 3], "b": [1, 2]}, ["a != b"]), np.random.default_rng(0)
    assert sorted(c.values for c in some.sample(99, rng)) == [c.values for c in some.all()]
    assert len(set(some.sample(3, rng))) == 3
    assert some.sample(0, rng) == []
    rough = space({"a": [1, 2, 3], "b": [1, 2]}, ["a != b"], list_limit=1)
    assert sorted(c.values for c in rough.sample(99, rng)) == [c.values for c in some.all()]


def test_the_same_seed_gives_the_same_configurations() -> None:
    some = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64})
    one, two, other = (some.sample(20, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert one == two != other
    start = some.first()
    assert some.neighbours(start, np.random.default_rng(3), 9) == some.neighbours(start, np.random.default_rng(3), 9)


def test_neighbours_are_valid_distinct_and_within_the_changes() -> None:
    some, rng = space(SGEMM, SGEMM_RULES, {"m": 128, "n": 128}), np.random.default_rng(0)
    for config in some.sample(5, rng):
        for changes in (1, 2, 3):
            near = some.neighbours(config, rng, 10_000, changes=changes)
            distances = [sum(x != y for x, y in zip(config.values, c.values, strict=True)) for c in near]
            everywhere = [sum(x != y for x, y in zip(config.values, c.values, strict=True)) for c in some.all()]
            assert Counter(distances) == Counter(d for d in everywhere if 1 <= d <= changes)
            assert len(set(near)) == len(near)
    few = some.neighbours(some.first(), rng, 3)
    assert len(few) == 3


# --- membership


def test_a_configuration_belongs_if_its_values_are_declared_and_allowed() -> None:
    some = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64})
    good = some.first().as_dict()
    assert some.contains(good)
    assert some.contains(dict(reversed(good.items())))
    assert not some.contains({**good, "BM": 17})
    assert not some.contains({**good, "BM": 128})
    assert not some.contains({**good, "extra": 1})
    assert not some.contains({k: v for k, v in good.items() if k != "TM"})
    assert some.config(dict(reversed(good.items()))) == some.first()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"BM": 17}, r"BM is 17; use one of 16, 32, 64, 128"),
        ({"BMM": 16}, r"BMM is not a parameter; known: BM, BN"),
        ({"BM": 128}, r'does not satisfy "m % BM == 0 and n % BN == 0"|does not satisfy "block =='),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong(change: dict[str, Value], message: str) -> None:
    some = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64})
    with pytest.raises(KernelError, match=message):
        some.config({**some.first().as_dict(), **change})


def test_a_missing_value_is_named() -> None:
    some = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64})
    with pytest.raises(KernelError, match="TN has no value"):
        some.config({k: v for k, v in some.first().as_dict().items() if k != "TN"})


# --- identity


def test_the_hash_is_of_what_makes_the_space_and_of_nothing_else() -> None:
    base = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64})
    assert base.sha256 == space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64, "k": 9}).sha256
    assert base.sha256 != space(SGEMM, SGEMM_RULES, {"m": 128, "n": 64}).sha256
    assert base.sha256 != space(SGEMM, SGEMM_RULES[:3], {"m": 64, "n": 64}).sha256
    assert base.sha256 != space({**SGEMM, "TM": [1, 2, 4]}, SGEMM_RULES, {"m": 64, "n": 64}).sha256


def test_a_configurations_key_does_not_depend_on_the_order() -> None:
    one, two = Config.of({"a": 1, "b": 2}), Config.of({"b": 2, "a": 1})
    assert one.key == two.key != Config.of({"a": 2, "b": 1}).key
    assert (one["b"], one.as_dict()) == (2, {"a": 1, "b": 2})


def test_a_space_travels_to_another_process() -> None:
    some = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64})
    some.walker(list(SGEMM))
    there = pickle.loads(pickle.dumps(some))
    assert there.all() == some.all()
    assert there.sha256 == some.sha256
