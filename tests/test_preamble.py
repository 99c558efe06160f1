from __future__ import annotations

import pytest

from tuner_daemon.builders.preamble import preamble, text_macro, with_source
from tuner_daemon.errors import KernelError
from tuner_daemon.records.kernel import Parameter, Value
from tuner_daemon.records.space import Config


def parameter(name: str, *values: Value) -> Parameter:
    return Parameter(name, values, "other")


def test_every_kind_of_value_becomes_a_define() -> None:
    parameters = [
        parameter("BM", 64, 128),
        parameter("PAD", True, False),
        parameter("ALPHA", 0.5, 1e-7),
        parameter("LAYOUT", "row-major", "column"),
    ]
    config = Config.of({"BM": 128, "PAD": False, "ALPHA": 1e-7, "LAYOUT": "row-major"})
    assert preamble(parameters, config, {}).splitlines() == [
        "#define BM 128",
        "#define PAD 0",
        "#define ALPHA 1e-07",
        "#define LAYOUT_ROW_MAJOR 1",
    ]


def test_problem_texts_are_defined_and_problem_numbers_are_not() -> None:
    problem: dict[str, Value] = {"m": 4096, "eps": 0.1, "dtype": "float32"}
    assert preamble([], None, problem) == "#define DTYPE_FLOAT32 1\n"


def test_the_same_values_give_the_same_text_in_any_order() -> None:
    parameters = [parameter("A", 1), parameter("B", 2)]
    first = preamble(parameters, Config.of({"A": 1, "B": 2}), {"x": "u", "y": "v"})
    assert first == preamble(parameters, Config.of({"B": 2, "A": 1}), {"y": "v", "x": "u"})
    assert first != preamble(parameters, Config.of({"A": 1, "B": 2}), {"x": "u", "y": "w"})


def test_without_a_config_parameters_stay_undefined() -> None:
    assert preamble([parameter("BM", 64)], None, {}) == ""


def test_two_values_of_one_macro_are_refused() -> None:
    alike = parameter("ORDER", "a-b", "a_b")
    with pytest.raises(KernelError, match="ORDER_A_B"):
        preamble([alike], Config.of({"ORDER": "a-b"}), {})
    different = parameter("ORDER", "a-b", "a_c")
    assert preamble([different], Config.of({"ORDER": "a-b"}), {}) == "#define ORDER_A_B 1\n"


def test_a_parameter_and_a_problem_text_of_one_macro_are_refused() -> None:
    with pytest.raises(KernelError, match="DTYPE_HALF twice"):
        preamble([parameter("DTYPE_HALF", 1)], Config.of({"DTYPE_HALF": 1}), {"dtype": "half"})


def test_the_source_keeps_its_name_and_line_numbers() -> None:
    assert (
        with_source("#define A 1\n", 'odd "name".cu', "int x;\n")
        == '#define A 1\n#line 1 "odd \\"name\\".cu"\nint x;\n'
    )


def test_text_macros_hold_letters_digits_and_underscores_only() -> None:
    assert text_macro("dtype", "float8.e4m3") == "DTYPE_FLOAT8_E4M3"
