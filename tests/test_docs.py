"""What the documents say is what the code does."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from tests.conftest import ROOT
from tests.test_systemd import SYSTEMD, setting_names
from tuner_daemon.cli.app import app
from tuner_daemon.errors import KernelError
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.specs import load_spec, templates_dir
from tuner_daemon.records.spec import Budget, DeviceRequest
from tuner_daemon.settings import Settings

README = (ROOT / "README.md").read_text()
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")
CODE_PATH = re.compile(r"`((?:tuner_daemon|cost_model|benchmarks|tests)/[\w/]+\.py)(?::(\w+(?:\.\w+)?))?`")
COMMAND = re.compile(r"^tunerd +((?:(?:log|clocks) )?[a-z]+)((?: +[^\s|#]+)*)", re.MULTILINE)
ON_ONE_SCREEN = 50  # lines

in_every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def commands() -> dict[str, TyperCommand]:
    """Full name -> command, as ``tunerd --help`` lists them."""

    def walk(group: TyperGroup, prefix: str) -> Iterator[tuple[str, TyperCommand]]:
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                yield from walk(command, f"{prefix}{name} ")
            elif isinstance(command, TyperCommand):
                yield f"{prefix}{name}", command

    top = typer.main.get_command(app)
    assert isinstance(top, TyperGroup)
    return dict(walk(top, ""))


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table under a heading of the README, without its head."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_readme_lists_every_command_and_no_other() -> None:
    listed = [" ".join(word for word in row[0].strip("`").split()[1:] if word.islower()) for row in rows("Commands")]
    assert sorted(listed) == sorted(commands())


def test_the_readme_lists_every_setting_with_its_default() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in rows("Settings")}
    assert set(listed) == setting_names(Settings)
    example = tomllib.loads((SYSTEMD / "tunerd.toml").read_text())
    for name, default in listed.items():
        table, _, key = name.rpartition(".")
        if default != "depends":
            assert tomllib.loads(f"x = {default}")["x"] == (example[table] if table else example)[key], name
    assert [name for name, default in listed.items() if default == "depends"] == ["state_dir", "host", "build.jobs"]


@in_every_document
def test_a_command_in_a_document_can_be_called_so(document: Path) -> None:
    for name, words in COMMAND.findall("\n".join(code_in(document.read_text()))):
        assert name in commands(), f"tunerd {name}"
        known = {option for parameter in commands()[name].params for option in parameter.opts}
        assert {word for word in words.split() if word.startswith("--")} <= known, f"tunerd {name}{words}"


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    assert COMMAND.findall("tunerd submit --wait a.toml") == [("submit", " --wait a.toml")]
    assert COMMAND.findall("tunerd log stats") == [("log stats", "")]
    assert COMMAND.findall("tunerd clocks lock --mhz 1590") == [("clocks lock", " --mhz 1590")]
    assert COMMAND.findall("systemctl status tunerd || usermod -aG tunerd ann") == []


@in_every_document
def test_a_code_block_is_well_formed(document: Path) -> None:
    for language, text in BLOCK.findall(document.read_text()):
        if language == "toml":
            tomllib.loads(text)


def test_the_specs_and_kernels_of_the_documents_load(tmp_path: Path) -> None:
    spec, kernel = toml_blocks(ROOT / "README.md")
    guide = "\n".join(toml_blocks(ROOT / "docs/kernels.md"))
    asked = load_spec(
        write(tmp_path / "asked" / "matmul.toml", spec),
        template_dirs=[templates_dir()],
        default_device=DeviceRequest(),
        default_budget=Budget(),
    )
    assert asked.kernel.name == "matmul"
    assert load_kernel(folder_with(kernel, tmp_path / "scale")).name == "scale"
    assert len(load_kernel(folder_with(guide, tmp_path / "row_sums")).arguments) == 4
    with pytest.raises(KernelError):
        load_kernel(folder_with(guide.replace("row_sums", "row sums"), tmp_path / "wrong"))


def toml_blocks(document: Path) -> list[str]:
    return [text for language, text in BLOCK.findall(document.read_text()) if language == "toml"]


def folder_with(declaration: str, folder: Path) -> Path:
    """A kernel folder whose sources are there, which is all that loading asks."""
    for name in ("kernel.cu", "kernel.c", "reference.cu", "reference.c"):
        write(folder / name, "")
    write(folder / "kernel.toml", declaration)
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@in_every_document
def test_a_link_leads_somewhere(document: Path) -> None:
    dead = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert dead == []


@in_every_document
def test_a_path_in_the_code_exists_with_what_is_named_in_it(document: Path) -> None:
    for path, name in CODE_PATH.findall(document.read_text()):
        assert (ROOT / path).is_file(), path
        assert not name or name in names_defined_in(ROOT / path), f"{path}:{name}"


def test_a_name_that_is_gone_would_be_noticed() -> None:
    assert CODE_PATH.findall("`tuner_daemon/daemon.py:Daemon.serve`") == [("tuner_daemon/daemon.py", "Daemon.serve")]
    defined = names_defined_in(ROOT / "tuner_daemon/daemon.py")
    assert "Daemon.serve" in defined
    assert "Daemon.serve_two" not in defined


@in_every_document
def test_a_make_target_in_a_document_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", document.read_text(), re.MULTILINE))
    assert named <= targets


def test_the_readme_sets_up_in_two_commands() -> None:
    first = BLOCK.search(README)
    assert first
    assert [line.split("#")[0].strip() for line in first[2].splitlines()] == ["make demo", "make test"]
    assert README.index("make test") < 1000, "on the first screen"


def test_contributing_fits_on_one_screen() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= ON_ONE_SCREEN


def code_in(text: str) -> Iterator[str]:
    """Shell blocks, and what stands between backquotes elsewhere."""
    yield from (block for language, block in BLOCK.findall(text) if language == "sh")
    yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))


def names_defined_in(module: Path) -> set[str]:
    """Functions, classes and methods (``Class.method``)."""
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names
