"""Expressions at length: what Python answers, and nothing that wants out gets out."""

from __future__ import annotations

import ast
import random
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.soak.attacks import attacks, harmless
from tests.test_expression import NAMES, by_python
from tuner_daemon.errors import ExpressionError
from tuner_daemon.records import expression
from tuner_daemon.records.expression import MAGNITUDE_CAP, Expression

SEED = 11
LIMIT_S = 0.005
VALUES = (*range(-9, 10), 0, 1, 2, 64, 1000, 2**31 - 1, True, False, 0.0, 0.25, -1.5, 3.0, 1e6)
RAISED = (SyntaxError, TypeError, ValueError, NameError, AttributeError, LookupError, ArithmeticError, RuntimeError)
EXACT = 2**53  # arrays round larger integers where they meet floats


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_random_expressions_are_what_python_answers(count: int) -> None:
    rng = random.Random(SEED)
    undefined = mismatches = 0
    slowest_s = 0.0
    for _ in range(count):
        text, names = _grown(rng, rng.randint(1, 6)), {name: rng.choice(VALUES) for name in NAMES}
        slowest_s = max(slowest_s, _least_s(partial(_answer, text, names)))
        ours = _answer(text, names)
        undefined += ours is None
        mismatches += not _agrees(text, names, ours, by_python(text, names))
    print(f"expressions {count} (seed {SEED}), undefined {undefined}, mismatches {mismatches}, ", end="")
    print(f"slowest {1e3 * slowest_s:.2f} ms")
    assert count // 100 < undefined < count // 2
    assert mismatches == 0
    assert slowest_s <= LIMIT_S


def test_a_wrong_answer_would_be_seen() -> None:
    """Negative control: the check of agreement fails for other rounding, other types, and a refusal too many."""
    names = {"a": -7, "b": 2, "c": True}
    assert not _agrees("a // b", names, -3, by_python("a // b", names))
    assert not _agrees("a % b", names, -1, by_python("a % b", names))
    assert not _agrees("a < b", names, 1, by_python("a < b", names))
    assert not _agrees("a + b", names, None, by_python("a + b", names))
    assert _agrees("a + b", names, -5, by_python("a + b", names))


def _grown(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice([*NAMES, str(rng.randint(0, 99)), rng.choice(["0.5", "2.0", "1e3", ".25", "1_000"])])

    def inner() -> str:
        return _grown(rng, depth - 1)

    match rng.randrange(8):
        case 0 | 1 | 2:
            return f"({inner()} {rng.choice(['+', '-', '*', '/', '//', '%'])} {inner()})"
        case 3:
            signs = rng.choices(["<", "<=", "==", "!=", ">", ">="], k=rng.randint(1, 3))
            return f"({inner()} " + " ".join(f"{sign} {inner()}" for sign in signs) + ")"
        case 4:
            return f"({inner()} {rng.choice(['and', 'or'])} {inner()} {rng.choice(['and', 'or'])} {inner()})"
        case 5:
            return f"{rng.choice(['min', 'max'])}({', '.join(inner() for _ in range(rng.randint(2, 4)))})"
        case 6:
            return f"ceil_div({inner()}, {inner()})"
        case _:
            return f"{rng.choice(['(-', '(not ', 'abs('])}{inner()})"


def _answer(text: str, names: dict[str, Any]) -> Any:
    """None where it is refused. Parsed anew each time."""
    expression._parsed.cache_clear()
    try:
        return Expression.parse(text).evaluate(names)
    except ExpressionError:
        return None


def _agrees(text: str, names: dict[str, Any], ours: Any, pythons: Any) -> bool:
    largest = _largest(text, names)
    if ours is None:
        return pythons is None or largest > MAGNITUDE_CAP or len(text) > expression.LENGTH_CAP
    if pythons is None or type(ours) is not type(pythons) or ours != pythons:
        return False
    if largest > EXACT:
        return True
    columns = {name: np.array([value]) for name, value in names.items()}
    array = np.ma.asarray(Expression.parse(text).evaluate_arrays(columns))
    return bool(np.ma.getmaskarray(array)[0] == 0 and array[0] == pythons)


def _largest(text: str, names: dict[str, Any]) -> float:
    """Of all values on the way, in magnitude; infinite where one is no number."""
    parts = [ast.unparse(node) for node in ast.walk(ast.parse(text, mode="eval").body) if isinstance(node, ast.expr)]
    values = [by_python(part, names) for part in parts if part not in ("min", "max", "abs", "ceil_div")]
    return max((abs(value) if value == value else float("inf") for value in values if value is not None), default=0.0)


def _least_s(work: Callable[[], object]) -> float:
    """CPU seconds; of three where the first was slow, since a collection of garbage may fall into one."""
    spent_s = float("inf")
    for _ in range(3):
        began_s = time.thread_time()
        work()
        spent_s = min(spent_s, time.thread_time() - began_s)
        if spent_s <= LIMIT_S / 2:
            break
    return spent_s


class Watch:
    """Counts what an escaped expression would do: an audit hook cannot be removed, only told not to look."""

    EVENTS = ("open", "import", "exec", "os.", "subprocess.", "socket.", "object.__getattr__", "cpython.", "ctypes.")

    def __init__(self) -> None:
        self.on, self.seen = False, list[str]()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, _: object) -> None:
        if self.on and event.startswith(self.EVENTS):
            self.seen.append(event)


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def test_no_attack_gives_a_value_or_touches_anything(watch: Watch) -> None:
    texts = list(attacks())
    names = {"a": 1, "b": 2, "c": 3}
    escapes, slowest_s = list[str](), 0.0
    for text in texts:
        with warnings.catch_warnings(record=True):
            watch.on = True
            if _answer(text, names) is not None:
                escapes.append(text)
            watch.on = False
        slowest_s = max(slowest_s, _least_s(partial(_answer, text, names)))
    print(f"attacks {len(texts)}, escapes {len(escapes)}, events {len(watch.seen)}, slowest {1e3 * slowest_s:.2f} ms")
    assert len(set(texts)) == len(texts) >= 300
    assert escapes == watch.seen == []
    assert slowest_s <= LIMIT_S


def test_python_itself_would_have_run_many_of_the_attacks(watch: Watch) -> None:
    """Negative control: most are valid Python, and some of them reach the system."""
    ran = 0
    watch.on = True
    for text in harmless():
        with warnings.catch_warnings(record=True):
            try:
                eval(text, {"a": 1, "b": 2, "ceil_div": max, "min": min, "max": max, "abs": abs})
            except RAISED:
                continue
        ran += 1
    watch.on = False
    print(f"run by eval {ran}, events {len(watch.seen)}")
    assert ran > 100
    assert "open" in watch.seen
