"""Kernel folders: what is loaded, what is refused and with which words, what the hash covers."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest

from tests.kernel_folders import KERNEL, changed, write_kernel
from tuner_daemon.errors import InputError, KernelError
from tuner_daemon.intake.kernels import kernel_from_declaration, load_kernel
from tuner_daemon.intake.specs import available_templates, templates_dir
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.space import ParamSpace

Y = 'name = "y"\nkind = "output"\ndtype = "dtype"\nshape = ["n"]\n'
INTS = Y.replace('"dtype"', '"int32"') + 'fill = "integers"\n'
SCRATCH = f'{Y}\n[[arguments]]\nname = "w"\nkind = "workspace"\ndtype = "int32"\nshape = ["n"]\n'


def load(folder: Path, text: str = KERNEL, *, without: tuple[str, ...] = ()) -> Kernel:
    return load_kernel(write_kernel(folder, text, without=without))


def test_a_kernel_folder_is_loaded_whole(tmp_path: Path) -> None:
    kernel = load(tmp_path / "scale")
    assert kernel.name == "scale"
    assert kernel.folder == tmp_path / "scale"
    assert {n: (s.file.name, s.entry) for n, s in kernel.sources.items()} == {
        "cuda": ("kernel.cu", "scale"),
        "cpu": ("kernel.c", "scale_cpu"),
    }
    assert {n: s.entry for n, s in kernel.reference.sources.items()} == dict.fromkeys(
        ("cuda", "cpu"), "scale_reference"
    )
    assert all(s.file.is_absolute() for s in (*kernel.sources.values(), *kernel.reference.sources.values()))
    assert [(p.name, p.role) for p in kernel.parameters] == [
        ("block_size_x", "thread_x"),
        ("WORK", "work_x"),
        ("LAYOUT", "layout"),
        ("USE_LDG", "read_only"),
    ]
    assert [(v.name, v.type, v.min, v.max, v.default) for v in kernel.problem] == [
        ("n", "int", 1, 1048576, None),
        ("alpha", "float", None, None, 2.0),
        ("dtype", "str", None, None, "float32"),
    ]
    assert [(a.name, a.kind, a.dtype) for a in kernel.arguments] == [
        ("x", "input", "dtype"),
        ("y", "output", "dtype"),
        ("n", "scalar", "int32"),
        ("alpha", "scalar", "float32"),
    ]
    assert kernel.arguments[2].value == Expression("n")
    assert kernel.launch.block == (Expression("block_size_x"),)
    assert kernel.launch.shared_bytes.evaluate({}) == 0
    assert kernel.baseline == {"block_size_x": 64, "WORK": 1, "LAYOUT": "row", "USE_LDG": False}
    assert ParamSpace(kernel, {"n": 64, "alpha": 2.0, "dtype": "float32"}).size == 3 * 4 * 2


def test_a_kernel_travels_to_another_process(tmp_path: Path) -> None:
    kernel = load(tmp_path / "scale")
    assert pickle.loads(pickle.dumps(kernel)) == kernel


def test_a_declaration_rebuilds_all_but_the_files(tmp_path: Path) -> None:
    kernel = load(tmp_path / "scale")
    again = kernel_from_declaration(kernel.declaration, kernel.sha256)
    for part in ("name", "problem", "parameters", "constraints", "launch", "arguments", "baseline", "work", "sha256"):
        assert getattr(again, part) == getattr(kernel, part), part
    assert again.declaration == kernel.declaration
    assert (dict(again.sources), dict(again.reference.sources)) == ({}, {})
    assert list(json.loads(kernel.declaration)["parameters"]) == ["block_size_x", "WORK", "LAYOUT", "USE_LDG"]


def test_a_damaged_declaration_is_an_error() -> None:
    with pytest.raises(KernelError, match="declaration-abc"):
        kernel_from_declaration('{"name": "x"', "abc")
    with pytest.raises(KernelError, match="parameters is missing"):
        kernel_from_declaration('{"name": "x"}', "abc")


# --- identity


def test_the_hash_covers_the_declaration_and_every_named_file(tmp_path: Path) -> None:
    hashes = {load(tmp_path / "same").sha256}
    for name in ("kernel.cu", "kernel.c", "reference.cu", "reference.c"):
        folder = write_kernel(tmp_path / f"other_{name}")
        (folder / name).write_text("// edited\n")
        hashes.add(load_kernel(folder).sha256)
    hashes.add(load(tmp_path / "more", changed("[32, 64, 128]", "[32, 64]")).sha256)
    assert len(hashes) == 6


def test_the_hash_is_the_same_wherever_and_however_it_is_written(tmp_path: Path) -> None:
    one = load(tmp_path / "here")
    reordered = "# a comment\n" + changed('block = "block_size_x"', 'block = [ "block_size_x" ]')
    folder = write_kernel(tmp_path / "there" / "elsewhere", reordered)
    (folder / "notes.txt").write_text("nobody names me")
    assert load_kernel(folder).sha256 == one.sha256


# --- references


@pytest.mark.parametrize(
    ("reference", "languages"),
    [
        ('source = "reference.cu"', {"cuda": "scale_reference"}),
        ('source = "reference.c"', {"cpu": "scale_reference"}),
        ('cuda = { file = "reference.cu", entry = "slow" }', {"cuda": "slow"}),
        ('source = "reference.cu"\ncpu = "reference.c"', {"cuda": "scale_reference", "cpu": "scale_reference"}),
    ],
)
def test_a_reference_source_says_its_language(tmp_path: Path, reference: str, languages: dict[str, str]) -> None:
    text = changed('cuda = "reference.cu"\ncpu = "reference.c"', reference)
    assert {n: s.entry for n, s in load(tmp_path, text).reference.sources.items()} == languages


def test_a_reference_may_be_a_configuration_or_arrays(tmp_path: Path) -> None:
    both = 'cuda = "reference.cu"\ncpu = "reference.c"'
    config = 'config = { block_size_x = 32, WORK = 1, LAYOUT = "col", USE_LDG = true }'
    kernel = load(tmp_path / "a", changed(both, config))
    assert kernel.reference.config == {"block_size_x": 32, "WORK": 1, "LAYOUT": "col", "USE_LDG": True}
    folder = write_kernel(tmp_path / "b", changed(both, 'arrays = { y = "y.npy" }'))
    (folder / "y.npy").write_bytes(b"numbers")
    kernel = load_kernel(folder)
    assert kernel.reference.arrays == {"y": folder / "y.npy"}
    (folder / "y.npy").write_bytes(b"other numbers")
    assert load_kernel(folder).sha256 != kernel.sha256


def test_without_a_reference_the_baseline_is_trusted_and_without_either_nothing_is(tmp_path: Path) -> None:
    reference = '[reference]\ncuda = "reference.cu"\ncpu = "reference.c"\n'
    kernel = load(tmp_path / "a", changed(reference, ""))
    assert kernel.reference.config == kernel.baseline
    baseline = '[baseline]\nconfig = { block_size_x = 64, WORK = 1, LAYOUT = "row", USE_LDG = false }\n'
    with pytest.raises(KernelError, match="reference is missing; say what results are compared with"):
        load(tmp_path / "b", changed(baseline, "", changed(reference, "")))


# --- recorded spaces


def test_a_recorded_space_needs_neither_sources_nor_launch(tmp_path: Path) -> None:
    text = 'name = "pnpoly"\n[parameters]\nblock_size_x = [32, 64]\ntile_size = [1, 2]\n'
    (tmp_path / "kernel.toml").write_text(text)
    with pytest.raises(KernelError, match="sources is missing"):
        load_kernel(tmp_path)
    (tmp_path / "a100.parquet").write_bytes(b"PAR1")
    kernel = load_kernel(tmp_path)
    assert (dict(kernel.sources), kernel.launch.block, kernel.arguments) == ({}, (), ())
    assert ParamSpace(kernel, {}).size == 4


# --- scalars and types


@pytest.mark.parametrize(
    ("scalar", "dtype", "value"),
    [
        ('value = "n // 2"', "int32", "n // 2"),
        ('value = "n / 2"', "float32", "n / 2"),
        ('value = "alpha * 2"', "float32", "alpha * 2"),
        ('value = "0.5"', "float32", "0.5"),
        ("value = 3", "int32", "3"),
        ('value = "n"\ndtype = "int64"', "int64", "n"),
        ('value = "WORK"', "int32", "WORK"),
    ],
)
def test_a_scalar_has_the_type_of_its_value_unless_it_says_so(
    tmp_path: Path, scalar: str, dtype: str, value: str
) -> None:
    text = changed("[reference]", f'[[arguments]]\nname = "half"\nkind = "scalar"\n{scalar}\n\n[reference]')
    argument = load(tmp_path, text).arguments[-1]
    assert (argument.dtype, argument.value) == (dtype, Expression(value))


def test_integers_have_bounds_and_a_workspace_is_zero(tmp_path: Path) -> None:
    indices = f'{INTS.replace("output", "inout")}high = "n"\n{SCRATCH.removeprefix(Y)}'
    argument, workspace = load(tmp_path, changed(Y, indices)).arguments[1:3]
    assert (argument.fill, argument.low, argument.high) == ("integers", Expression("0"), Expression("n"))
    assert (workspace.kind, workspace.dtype, workspace.fill) == ("workspace", "int32", "zeros")
    assert workspace.shape == (Expression("n"),)
    same = load(tmp_path / "sorted", changed(Y, f"{INTS.replace('integers', 'sorted')}low = 7\nhigh = 7\n"))
    assert same.arguments[1].fill == "sorted"


# --- what is refused

BASE = "config = { block_size_x = 64, WORK = 1"
BAD = {
    "unknown top key": ('name = "scale"', 'name = "scale"\nauthor = "me"', "author is not a known key"),
    "misspelt table": ("[constraints]", "[constraint]", r':18: constraint is not a known key; .*"constraints"'),
    "unknown key in a table": ("min = 1,", "minimum = 1,", r'problem\.n\.minimum is not a known key; .*"min"'),
    "bad name": ('name = "scale"', 'name = "scale it"', "name is .*; want letters, digits and _"),
    "long name": ('name = "scale"', f'name = "{"s" * 65}"', "at most 64"),
    "no name": ('name = "scale"', "", "name is missing"),
    "unknown language": ('cuda = "kernel.cu"', 'hip = "kernel.cu"', "sources.hip is .*; want one of cuda, cpu"),
    "missing source": ('cuda = "kernel.cu"', 'cuda = "kernl.cu"', r':4: sources.cuda names "kernl.cu", which is not'),
    "source above": ('cuda = "kernel.cu"', 'cuda = "../kernel.cu"', "sources.cuda is .*; name a file inside"),
    "absolute source": ('cuda = "kernel.cu"', 'cuda = "/etc/passwd"', "sources.cuda is .*; name a file inside"),
    "entry with code": ('entry = "scale_cpu"', 'entry = "f(); evil"', "sources.cpu.entry is"),
    "problem type": ('n = { type = "int"', 'n = { type = "integer"', "problem.n.type is .*; want one of int, float"),
    "problem min text": ("min = 1,", 'min = "1",', "problem.n.min is .*want a number"),
    "min above max": ("max = 1048576", "max = 0", "problem.n has min 1 above max 0"),
    "default out of range": ("max = 1048576", "max = 9, default = 10", "problem.n.default is 10; want at most 9"),
    "default of other kind": ('default = "float32"', "default = 32", r"problem\.dtype\.default is 32; want text"),
    "mixed problem values": ('["float32", "float64"]', '["float32", 1]', r"problem\.dtype"),
    "no values": ("[32, 64, 128]", "[]", r"parameters\.block_size_x\.values is a list; want at least 1"),
    "value twice": ("[32, 64, 128]", "[32, 64, 32]", r"block_size_x has the value 32 twice"),
    "equal values": ("[32, 64, 128]", "[32, 64, 64.0]", r"block_size_x has the value 64.0 twice"),
    "mixed values": ("[32, 64, 128]", '[32, "auto"]', "block_size_x mixes kinds of values"),
    "bool among numbers": ("[32, 64, 128]", "[2, true]", "block_size_x mixes kinds of values"),
    "value is a list": ("[32, 64, 128]", "[32, [64]]", r"block_size_x\.values\[1\] is a list; want a number"),
    "value is a date": ("[32, 64, 128]", "[1979-05-27]", r"block_size_x\[0\] is a date"),
    "value not finite": ("[32, 64, 128]", "[32, inf]", r"block_size_x\[1\] is inf; want a finite number"),
    "long text": ('["row", "col"]', f'["{"r" * 65}"]', "want 1 to 64 printable characters"),
    "same macro": ('["row", "col"]', '["a-b", "a_b"]', r"LAYOUT has values that are one in a source \(A_B\)"),
    "many values": ("[32, 64, 128]", str(list(range(5000))), "want at most 4096"),
    "values not a list": ("[32, 64, 128]", "32", r"block_size_x\.values is 32; want a list"),
    "unknown role": ('role = "work_x"', 'role = "work_w"', "WORK.role is .work_w.; did you mean .work_"),
    "parameter is a keyword": ("USE_LDG = [true, false]", "lambda = [1, 2]", "lambda is a word with a meaning"),
    "parameter is a function": ("USE_LDG = [true, false]", "min = [1, 2]", "min is a word with a meaning"),
    "parameter is a variable": ("USE_LDG = [true, false]", "n = [1, 2]", "parameters.n is a problem variable, too"),
    "bad parameter name": ("USE_LDG = [true, false]", '"USE-LDG" = [1]', "USE-LDG is .*want letters"),
    "constraint with an unknown name": (
        '"n % WORK == 0"',
        '"n % WORKK == 0"',
        r':20: constraints\.all\[0\] "n % WORKK == 0" reads the unknown name "WORKK"; did you mean "WORK"\?',
    ),
    "constraint that calls": ('"n % WORK == 0"', "\"open('x')\"", r"constraints\.all\[0\] .* uses Call"),
    "constraint with power": ('"n % WORK == 0"', '"n ** 2 > 0"', "uses Pow, which is not allowed"),
    "constraint adds text": ('"n % WORK == 0"', '"LAYOUT + 1 > 0"', "uses text as a number"),
    "constraints not a list": ("[constraints]\nall = [", "[constraints]\nany = [", r"constraints\.any is not a known"),
    "no launch for cuda": (
        '[launch]\nblock = "block_size_x"\ngrid = ["ceil_div(n, block_size_x * WORK)"]\n',
        "",
        "launch is missing; give block and grid",
    ),
    "four axes": ('block = "block_size_x"', "block = [1, 1, 1, 1]", r"launch\.block is a list; want at most 3"),
    "launch with an unknown name": ('block = "block_size_x"', 'block = "bsx"', r'launch\.block\[0\] .*name "bsx"'),
    "unknown kind": ('kind = "output"', 'kind = "out"', r":36: arguments\[1\]\.kind is .out.; want one of input, out"),
    "no output": (Y, Y.replace("output", "input"), "arguments has no output"),
    "unknown dtype": ('dtype = "dtype"\nshape = ["n"]\n\n[[arguments]]\nname = "y"',
                      'dtype = "float31"\nshape = ["n"]\n\n[[arguments]]\nname = "y"',
                      r'arguments\[0\]\.dtype is "float31"; did you mean "float32"'),
    "variable with another dtype": ('["float32", "float64"]', '["float32", "half"]', r'dtype\.values has "half"'),
    "array without a shape": (Y, Y.replace('shape = ["n"]\n', ""), r"arguments\[1\]\.shape is missing"),
    "array without a dtype": (Y, Y.replace('dtype = "dtype"\n', ""), r"arguments\[1\]\.dtype is missing"),
    "array with a value": (Y, f'{Y}value = "n"\n', r"arguments\[1\]\.value is given for an array"),
    "unknown fill": (Y, f'{Y}fill = "gauss"\n', r'arguments\[1\]\.fill is "gauss"'),
    "scalar with a low": ('name = "alpha"\n', 'name = "alpha"\nlow = 1\n', r"\.low is given for a scalar"),
    "low without integers": (Y, f"{Y}low = 0\n", r'\.low is given for the fill "normal"; .*"integers"'),
    "high without integers": (Y, f'{Y}fill = "zeros"\nhigh = 9\n', r'\.high is given for the fill "zeros"'),
    "integers without high": (Y, f'{INTS}low = 0\n', r"\.high is missing; the fill"),
    "integers of floats": (Y, f'{Y}fill = "integers"\nhigh = 9\n', r'\.dtype is "dtype", which the fill'),
    "no integers": (Y, f"{INTS}low = 7\nhigh = 7\n", r":\d+: arguments\[1\]\.high is 7, which leaves nothing"),
    "high below low": (Y, f"{INTS}low = 7\nhigh = 3\n".replace("integers", "sorted"), r"\.high is 3, which"),
    "bound with an unknown name": (Y, f'{INTS}high = "m"\n', r'\.high .*unknown name "m"'),
    "bound with a parameter": (Y, f'{INTS}high = "WORK"\n', r"\.high depends on the parameter WORK"),
    "workspace with a fill": (Y, f'{SCRATCH}fill = "zeros"\n', r"\.fill is given for a workspace; remove it"),
    "workspace without a shape": (Y, SCRATCH.removesuffix('shape = ["n"]\n'), r"\.shape is missing"),
    "workspace as the only output": (Y, Y.replace("output", "workspace"), "arguments has no output"),
    "missing array file": (Y, f'{Y}fill = "y.npy"\n', r'arguments\[1\]\.fill names "y.npy", which is not there'),
    "argument twice": (Y, Y.replace('"y"', '"x"'), r'arguments\[1\]\.name is "x" again'),
    "array named as a parameter": (Y, Y.replace('"y"', '"WORK"'), "is a parameter, too"),
    "scalar without a value": ('name = "alpha"\nkind', 'name = "alfa"\nkind', r'"alfa", which has no value; .*"alpha"'),
    "scalar that is text": ('name = "alpha"\nkind', 'name = "dtype"\nkind', "is text, want a number"),
    "scalar with a shape": ('name = "alpha"\n', 'name = "alpha"\nshape = ["n"]\n', "is given for a scalar"),
    "no reference source": ('cuda = "reference.cu"', 'cuda = "slow.cu"', r'reference\.cuda names "slow.cu"'),
    "two kinds of reference": ('cuda = "reference.cu"', 'arrays = { y = "y.npy" }', "reference has more than one kind"),
    "empty reference": ('cuda = "reference.cu"\ncpu = "reference.c"', "", "reference is empty"),
    "reference of no language": ('cuda = "reference.cu"\ncpu = "reference.c"', 'source = "r.f90"', "want a .cu or .c"),
    "array of no output": ('cuda = "reference.cu"\ncpu = "reference.c"', 'arrays = { x = "x.npy" }', "not an output"),
    "unknown in baseline": (BASE, f"{BASE}, WRK = 2", r"baseline\.config\.WRK is not a parameter; .*\"WORK\""),
    "missing in baseline": (f"{BASE},", "config = { block_size_x = 64,", r"baseline\.config does not say WORK"),
    "other value in baseline": (BASE, "config = { block_size_x = 65, WORK = 1", "_x is 65; want one of 32, 64"),
    "work with an unknown name": ('flops = "n"', 'flops = "N"', r'work\.flops .*unknown name "N"'),
    "tolerance": ('name = "scale"', 'name = "scale"\ntolerance = 0', "tolerance is 0; want more than 0"),
    "tolerance as text": ('name = "scale"', 'name = "scale"\ntolerance = "1e-3"', "tolerance is .*; want a number"),
    "broken TOML": ("[constraints]", "[constraints", r"kernel\.toml:18: is not TOML"),
    "key twice": ('name = "scale"', 'name = "scale"\nname = "scale"', r"kernel\.toml:2: is not TOML: Cannot overwrite"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD.keys())
def test_a_wrong_kernel_says_what_is_wrong_and_where(tmp_path: Path, old: str, new: str, message: str) -> None:
    started = time.process_time()
    with pytest.raises(KernelError, match=message) as caught:
        load(tmp_path, changed(old, new))
    assert time.process_time() - started < 1.0
    assert str(caught.value).startswith("kernel.toml:")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("passage", "spoiled"),
    [
        ("max = 1048576", "max = 1.5e99.1"),
        ('"n % WORK == 0"', '"n % WORKK == 0"'),
        ("LAYOUT == 'row' or WORK == 1", "LAYOUT == 'row' or WORK === 1"),
        ('grid = ["ceil_div(n, block_size_x * WORK)"]', 'grid = ["ceil_dif(n, block_size_x * WORK)"]'),
        ('name = "alpha"\nkind', 'name = "alfa"\nkind'),
        ('flops = "n"', 'flops = "N"'),
        ('bytes = "8 * n"', "bits = 8"),
        ("config = { block_size_x = 64", "config = { block_size_y = 64"),
    ],
)
def test_the_line_is_that_of_the_passage(tmp_path: Path, passage: str, spoiled: str) -> None:
    line = KERNEL[: KERNEL.index(passage)].count("\n") + 1
    with pytest.raises(KernelError, match=rf"^kernel\.toml:{line}: "):
        load(tmp_path, changed(passage, spoiled))


def test_too_many_parameters_are_refused(tmp_path: Path) -> None:
    more = "\n".join(f"P{i} = [1]" for i in range(61))
    with pytest.raises(KernelError, match="parameters is a table; want at most 64"):
        load(tmp_path, changed("USE_LDG = [true, false]", f"USE_LDG = [true, false]\n{more}"))


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = write_kernel(tmp_path / "k", without=("kernel.cu",))
    (tmp_path / "outside.cu").write_text("// secret\n")
    (folder / "kernel.cu").symlink_to(tmp_path / "outside.cu")
    with pytest.raises(KernelError, match=r'sources\.cuda is "kernel\.cu", a symbolic link'):
        load_kernel(folder)
    deep = write_kernel(tmp_path / "d", changed('cuda = "kernel.cu"', 'cuda = "src/kernel.cu"'))
    (deep / "src").mkdir()
    (deep / "src" / "kernel.cu").write_text("// here\n")
    assert load_kernel(deep).sources["cuda"].file == deep / "src" / "kernel.cu"
    (deep / "src" / "kernel.cu").unlink()
    (deep / "src").rmdir()
    (deep / "src").symlink_to(folder)
    with pytest.raises(KernelError, match="a symbolic link"):
        load_kernel(deep)
    declared = write_kernel(tmp_path / "t")
    (declared / "kernel.toml").rename(tmp_path / "elsewhere.toml")
    (declared / "kernel.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(KernelError, match=r"kernel\.toml: is a symbolic link"):
        load_kernel(declared)


def test_a_huge_source_is_refused_unread(tmp_path: Path) -> None:
    folder = write_kernel(tmp_path)
    with (folder / "kernel.cu").open("wb") as file:
        file.truncate(1 << 30)
    started = time.process_time()
    with pytest.raises(KernelError, match=r"kernel\.cu: has 1073741824 bytes"):
        load_kernel(folder)
    assert time.process_time() - started < 1.0


def test_a_folder_that_is_none_or_has_no_declaration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="none: is not a folder"):
        load_kernel(tmp_path / "none")
    with pytest.raises(KernelError, match=r"kernel\.toml: does not exist"):
        load_kernel(tmp_path)


@pytest.mark.parametrize("family", sorted(available_templates([templates_dir()])))
def test_every_family_that_ships_loads(family: str) -> None:
    kernel = load_kernel(templates_dir() / family)
    again = kernel_from_declaration(kernel.declaration, kernel.sha256)
    assert (again.parameters, again.arguments) == (kernel.parameters, kernel.arguments)


def test_a_kernel_error_is_an_input_error() -> None:
    assert issubclass(KernelError, InputError)
