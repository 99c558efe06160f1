"""Specs: how they name their kernel, what they default to, and what makes two of them the same question."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.kernel_folders import KERNEL, changed, write_kernel
from tuner_daemon.engine import job_of
from tuner_daemon.errors import KernelError, SpecError
from tuner_daemon.intake.specs import available_templates, load_spec, priority_of, read_spec_text, templates_dir
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec, Options

ASKED = '[problem]\nn = 4096\n'  # fmt: skip
INLINE = """\
name = "scale"
[sources]
cuda = "scale.cu"
[problem]
n = 4096
alpha = 0.5
dtype = "float32"
[parameters]
BLOCK = [32, 64]
[launch]
block = "BLOCK"
grid = "ceil_div(n, BLOCK)"
[[arguments]]
name = "y"
kind = "inout"
dtype = "dtype"
shape = "n"
[[arguments]]
name = "alpha"
kind = "scalar"
[reference]
source = "reference.cu"
"""


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    write_kernel(tmp_path / "templates" / "scale")
    return tmp_path / "templates"


def load(path: Path, *templates: Path) -> KernelSpec:
    return load_spec(
        path,
        template_dirs=templates,
        default_device=DeviceRequest("cuda", 3),
        default_budget=Budget(measurements=17, seconds=99.0),
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_spec_names_a_template_and_gets_defaults(tmp_path: Path, templates: Path) -> None:
    spec = load(write(tmp_path / "job.toml", f'template = "scale"\n{ASKED}'), templates)
    assert spec.kernel.folder == templates / "scale"
    assert spec.problem == {"n": 4096, "alpha": 2.0, "dtype": "float32"}
    assert spec.device == DeviceRequest("cuda", 3)
    assert spec.budget == Budget(measurements=17, seconds=99.0)
    assert spec.options == Options(force=False, priority=0)
    assert spec.name == "job"


def test_a_spec_may_say_everything(tmp_path: Path, templates: Path) -> None:
    text = f"""\
template = "scale"
{ASKED}alpha = 3
dtype = "float64"
[budget]
measurements = 5
seconds = 30
[device]
kind = "cpu"
[options]
force = true
priority = -5
"""
    spec = load(write(tmp_path / "job.toml", text), templates)
    assert spec.problem == {"n": 4096, "alpha": 3.0, "dtype": "float64"}
    assert isinstance(spec.problem["alpha"], float)
    assert spec.device == DeviceRequest("cpu", 0)
    assert spec.budget == Budget(measurements=5, seconds=30.0)
    assert spec.options == Options(force=True, priority=-5)


def test_json_with_the_same_keys_is_the_same_spec(tmp_path: Path, templates: Path) -> None:
    toml = load(write(tmp_path / "one.toml", f'template = "scale"\n{ASKED}[budget]\nseconds = 60\n'), templates)
    document = {"template": "scale", "problem": {"n": 4096}, "budget": {"seconds": 60}}
    by_suffix = load(write(tmp_path / "two.json", json.dumps(document, indent=1)), templates)
    by_content = load(write(tmp_path / "three.toml", json.dumps(document)), templates)
    assert toml == by_suffix == by_content
    assert toml.identity == by_suffix.identity == by_content.identity


def test_the_same_question_has_the_same_identity_however_it_is_written(tmp_path: Path, templates: Path) -> None:
    def identity(text: str) -> str:
        return load(write(tmp_path / "job.toml", text), templates).identity

    plain = identity(f'template = "scale"\n{ASKED}')
    assert plain == identity(f'# again\n{ASKED}dtype = "float32"\nalpha = 2\n'.replace("# again", 'template = "scale"'))
    assert plain == identity(f'template = "scale"\n{ASKED}[budget]\nmeasurements = 9\n[options]\nforce = true\n')
    assert plain != identity(f'template = "scale"\n{ASKED}alpha = 2.5\n')
    assert plain != identity(f'template = "scale"\n{ASKED}[device]\nkind = "cpu"\n')


def test_a_spec_names_a_kernel_folder_beside_it(tmp_path: Path) -> None:
    write_kernel(tmp_path / "mine")
    spec = load(write(tmp_path / "job.toml", f'kernel = "mine"\n{ASKED}'))
    assert spec.kernel.folder == tmp_path / "mine"


def test_a_folder_with_a_spec_in_it_is_one_job(tmp_path: Path) -> None:
    folder = write_kernel(tmp_path / "job" / "mine").parent
    write(folder / "spec.toml", f'kernel = "mine"\n{ASKED}')
    spec = load(folder)
    assert (spec.name, spec.kernel.name) == ("job", "scale")


def test_a_folder_with_a_json_spec_is_a_job_like_any_other(tmp_path: Path) -> None:
    folder = write_kernel(tmp_path / "job" / "mine").parent
    write(folder / "spec.json", json.dumps({"kernel": "mine", "problem": {"n": 4096}, "options": {"priority": 7}}))
    assert (load(folder).name, load(folder).kernel.name, priority_of(folder)) == ("job", "scale", 7)
    write(folder / "spec.toml", f'kernel = "mine"\n{ASKED}[options]\npriority = 3\n')
    assert priority_of(folder) == load(folder).options.priority == 3  # spec.toml goes before


def test_a_folder_without_a_spec_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec\.toml: does not exist"):
        load(tmp_path)
    assert priority_of(tmp_path) == 0


def test_one_toml_and_one_source_are_enough(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text("// scale\n")
    (tmp_path / "reference.cu").write_text("// reference\n")
    spec = load(write(tmp_path / "job.toml", INLINE))
    assert spec.kernel.sources["cuda"].file == tmp_path / "scale.cu"
    assert [(v.name, v.type) for v in spec.kernel.problem] == [("alpha", "float"), ("dtype", "str"), ("n", "int")]
    assert spec.problem == {"n": 4096, "alpha": 0.5, "dtype": "float32"}
    other = load(write(tmp_path / "other.toml", changed("n = 4096", "n = 8192", INLINE)))
    assert other.kernel.sha256 == spec.kernel.sha256  # the same kernel, asked at another size
    assert other.identity != spec.identity


def test_an_inline_kernel_without_a_name_is_called_as_its_source(tmp_path: Path) -> None:
    for name in ("scale.cu", "reference.cu"):
        write(tmp_path / "my-job" / name, "//")
    nameless = changed('name = "scale"\n', "", INLINE)
    spec = load(write(tmp_path / "my-job" / "some.toml", nameless))
    assert (spec.kernel.name, spec.kernel.sources["cuda"].entry) == ("scale", "scale")
    table = changed('cuda = "scale.cu"', 'cuda = { file = "scale.cu", entry = "f" }', nameless)
    assert load(write(tmp_path / "my-job" / "table.toml", table)).kernel.name == "scale"


def test_an_inline_kernel_is_the_same_job_under_any_file_name_and_in_any_order_of_keys(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        for name in ("scale.cu", "reference.cu"):
            write(tmp_path / folder / name, "//")
    nameless = changed('name = "scale"\n', "", INLINE)
    tables = tomllib.loads(nameless)
    turned = {key: dict(reversed(v.items())) if isinstance(v, dict) else v for key, v in reversed(tables.items())}
    jobs = [
        job_of(load(write(tmp_path / name, text)))
        for name, text in (
            ("a/some.toml", nameless),
            ("a/other.json", json.dumps(tables, indent=3)),
            ("b/spec.toml", nameless),
            ("b/turned.json", json.dumps(turned)),
        )
    ]
    assert len(set(jobs)) == 1
    other = changed("BLOCK = [", "BLOCK = [512, ", nameless)  # negative control
    assert job_of(load(write(tmp_path / "a" / "some.toml", other))) not in jobs


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n = 4096", "n = 0", "problem.n is 0; want at least 1"),
        ("n = 4096", "n = true", "problem.n is true; use 0 or 1"),
        ("n = 4096", "n = { min = 1 }", "problem.n is a table; want a number"),
        (
            'dtype = "float32"\n[par',
            'dtype = "float31"\n[par',
            'job.toml:7: problem.dtype is "float31"; did you mean "float32"?',
        ),
        ('"ceil_div(n, BLOCK)"', '"ceil_div(m, BLOCK)"', 'job.toml:12: launch.grid[0] "ceil_div(m, BLOCK)" reads'),
        ('cuda = "scale.cu"', 'cuda = "../scale.cu"', 'job.toml:3: sources.cuda is "../scale.cu"'),
        ("[parameters]", "[paramters]", 'paramters is not a known key; did you mean "parameters"?'),
    ],
)
def test_a_wrong_inline_kernel_is_an_error_of_the_spec(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "scale.cu").write_text("// scale\n")
    (tmp_path / "reference.cu").write_text("// reference\n")
    with pytest.raises((SpecError, KernelError), match=re.escape(message)) as caught:
        load(write(tmp_path / "job.toml", changed(old, new, INLINE)))
    assert str(caught.value).startswith("job.toml:")


def test_the_first_template_folder_that_has_a_family_wins(tmp_path: Path, templates: Path) -> None:
    site = write_kernel(tmp_path / "site" / "scale").parent
    write_kernel(site / "other")
    assert available_templates([site, templates]) == {"scale": site / "scale", "other": site / "other"}
    assert available_templates([templates, site])["scale"] == templates / "scale"
    assert available_templates([tmp_path / "none"]) == {}


def test_the_families_that_ship_are_found() -> None:
    assert (templates_dir() / "matmul" / "kernel.toml").is_file()


def test_a_device_needs_a_source_and_a_reference_in_its_language(tmp_path: Path) -> None:
    text = f'kernel = "mine"\n{ASKED}[device]\nkind = "cpu"\n'
    spec = write(tmp_path / "job.toml", text)
    write_kernel(tmp_path / "mine", changed('cpu = "reference.c"\n', ""))
    with pytest.raises(SpecError, match=r'job\.toml:5: device\.kind is "cpu", but the reference of scale is for cuda'):
        load(spec)
    write_kernel(tmp_path / "mine", changed('cpu = { file = "kernel.c", entry = "scale_cpu" }\n', ""))
    with pytest.raises(SpecError, match=r'job\.toml:5: device\.kind is "cpu", but scale has cuda'):
        load(spec)
    write_kernel(tmp_path / "mine")
    assert load(spec).language == "cpu"


def test_a_recorded_space_is_for_replay_only(tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    folder.mkdir()
    (folder / "kernel.toml").write_text('name = "pnpoly"\n[parameters]\nblock_size_x = [32, 64]\n')
    (folder / "a100.parquet").write_bytes(b"PAR1")
    spec = load(write(tmp_path / "job.toml", 'kernel = "recorded"\n[device]\nkind = "replay"\n'))
    assert (spec.device.kind, spec.problem) == ("replay", {})
    with pytest.raises(SpecError, match="it is a recorded space, for the device kind replay"):
        load(write(tmp_path / "job.toml", 'kernel = "recorded"\n'))


def test_sizes_that_leave_no_integers_are_refused(tmp_path: Path) -> None:
    argument = '[[arguments]]\nname = "i"\nkind = "input"\ndtype = "int32"\nshape = "n"\n'
    argument += 'fill = "integers"\nhigh = "n - 4"\n'
    text = INLINE.replace("[reference]", f"{argument}[reference]")
    (tmp_path / "scale.cu").write_text("")
    (tmp_path / "reference.cu").write_text("")
    assert load(write(tmp_path / "good.toml", text)).kernel.arguments[-1].high is not None
    wrong = r"bad.toml:4: problem makes arguments.i.high of scale \(n - 4\) wrong: it is 0, which leaves nothing"
    with pytest.raises(SpecError, match=wrong):
        load(write(tmp_path / "bad.toml", text.replace("n = 4096", "n = 4")))


def test_a_byte_order_mark_is_tolerated(tmp_path: Path, templates: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xef\xbb\xbf" + f'template = "scale"\n{ASKED}'.encode())
    assert load(path, templates).problem["n"] == 4096
    assert read_spec_text(path).startswith("template")


def test_a_kernel_error_names_the_kernels_own_file(tmp_path: Path) -> None:
    write_kernel(tmp_path / "mine", changed("[32, 64, 128]", "[]", KERNEL))
    with pytest.raises(KernelError, match=r"^kernel\.toml:13: parameters\.block_size_x"):
        load(write(tmp_path / "job.toml", f'kernel = "mine"\n{ASKED}'))
