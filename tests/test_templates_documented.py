"""docs/templates.md lists the kernels that ship, as they are."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.families import FAMILIES, family

LANGUAGES = {"cuda": "CUDA", "cpu": "C"}


def listed() -> dict[str, list[str]]:
    lines = (ROOT / "docs" / "templates.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


def names(cell: str) -> list[str]:
    return [name.strip().strip("`") for name in cell.split(",")]


def test_every_family_is_listed_with_its_problem_types_languages_and_parameters() -> None:
    rows = listed()
    assert list(rows) == sorted(FAMILIES)
    for name, (computes, problem, types, languages, parameters) in rows.items():
        kernel = family(name).kernel
        assert computes
        variables = {variable.name: variable for variable in kernel.problem}
        assert names(problem) == [v for v in variables if v != "dtype"]
        assert names(types) == list(variables["dtype"].values)
        assert names(languages) == [LANGUAGES[language] for language in sorted(kernel.sources, reverse=True)]
        assert names(parameters) == [parameter.name for parameter in kernel.parameters]
