"""A corpus of bad specs. Each must be refused within a second, in words that name the file and what to do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.kernel_folders import changed, write_kernel
from tuner_daemon.errors import InputError, KernelError
from tuner_daemon.intake.specs import load_spec
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec

GOOD = 'template = "scale"\n[problem]\nn = 4096\n[budget]\nmeasurements = 8\n'
JSON = '{"template": "scale", "problem": {"n": 4096}}'


def with_(old: str, new: str) -> bytes:
    return changed(old, new, GOOD).encode()


TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t\n", "is empty"),
    "only a byte order mark": (b"\xef\xbb\xbf", "is empty"),
    "a comment": (b"# nothing yet\n", "names no kernel"),
    "half written": (GOOD.encode()[:40], "not TOML"),
    "half a key": (b"templ", "not TOML"),
    "half written JSON": (JSON.encode()[:-9], "not JSON"),
    "binary": (bytes(range(256)) * 8, "not UTF-8"),
    "an executable": (b"\x7fELF\x02\x01\x01" + b"\0" * 64, "NUL"),
    "a NUL": (with_("4096", "40\0" + "96"), "NUL"),
    "UTF-16": (GOOD.encode("utf-16"), "not UTF-8"),
    "Latin-1": (with_("scale", "skåla").decode().encode("latin-1"), "not UTF-8"),
    "prose": (b"please tune my kernel\n", "not TOML"),
    "YAML": (b"template: scale\nproblem:\n  n: 4096\n", "not TOML"),
    "a JSON list": (b'[{"template": "scale"}]', "not TOML"),
    "a shell script": (b"#!/bin/sh\nrm -rf /\n", "not TOML"),
    "unknown key": (b"templates = 1\n" + GOOD.encode(), 'did you mean "template"'),
    "unknown table": (with_("[budget]", "[budgets]"), 'did you mean "budget"'),
    "unknown budget": (with_("measurements", "measurments"), 'did you mean "measurements"'),
    "unknown option": (GOOD.encode() + b"[options]\nforced = true\n", 'did you mean "force"'),
    "unknown problem value": (with_("n = 4096", "n = 4096\nnn = 3"), "problem.nn is not declared by scale"),
    "missing problem value": (with_("n = 4096\n", ""), "does not give problem.n"),
    "no problem": (b'template = "scale"\n', "does not give problem.n"),
    "problem is a number": (with_("[problem]\nn = 4096\n", "problem = 3\n"), "problem is 3; want a table"),
    "text for a number": (with_("4096", '"4k"'), 'problem.n is "4k"; want a positive integer'),
    "float for an integer": (with_("4096", "4096.0"), "problem.n is 4096.0; want a positive integer"),
    "boolean for an integer": (with_("4096", "true"), "problem.n is true; want a positive integer"),
    "list for an integer": (with_("4096", "[4096]"), "problem.n is a list; want a number"),
    "date for an integer": (with_("4096", "1979-05-27"), "problem.n is a date"),
    "number for text": (with_("n = 4096", "n = 4096\ndtype = 32"), "problem.dtype is 32; want text"),
    "negative": (with_("4096", "-1"), "problem.n is -1; want at least 1"),
    "zero": (with_("4096", "0"), "problem.n is 0; want at least 1"),
    "too large": (with_("4096", "2097152"), "problem.n is 2097152; want at most 1048576"),
    "huge": (with_("4096", "9" * 40), "problem.n is too large"),
    "a number without end": (with_("4096", "9" * 100_000), "a number is too long"),
    "NaN": (with_("n = 4096", "n = 4096\nalpha = nan"), "problem.alpha is nan"),
    "infinite": (with_("n = 4096", "n = 4096\nalpha = -inf"), "problem.alpha is -inf"),
    "NaN in JSON": (JSON.replace("4096", "NaN").encode(), "NaN is not a number"),
    "infinite in JSON": (JSON.replace("4096", "1e999").encode(), "problem.n is inf"),
    "other dtype": (with_("n = 4096", 'n = 4096\ndtype = "float31"'), 'is "float31"; want one of "float32"'),
    "empty text": (with_("n = 4096", 'n = 4096\ndtype = ""'), "want 1 to 64 printable characters"),
    "control characters": (with_("n = 4096", 'n = 4096\ndtype = "\\u001b[2J"'), "unprintable"),
    "long text": (with_("n = 4096", f'n = 4096\ndtype = "{"f" * 5000}"'), "want 1 to 64 printable characters"),
    "unknown template": (with_("scale", "scael"), 'template is "scael", which is not there; did you mean "scale"?'),
    "template above": (with_("scale", "../scale"), "template is"),
    "absolute template": (with_("scale", "/etc"), "template is"),
    "empty template": (with_("scale", ""), "template is"),
    "template is a list": (with_('"scale"', '["scale"]'), "template is a list; want text"),
    "two kernels": (b'kernel = "mine"\n' + GOOD.encode(), "has both template and kernel"),
    "template and tables": (GOOD.encode() + b"[parameters]\nBM = [1]\n", "has both template and parameters"),
    "unknown kernel": (with_('template = "scale"', 'kernel = "mine"'), 'kernel is "mine", which is not there'),
    "kernel above": (with_('template = "scale"', 'kernel = "../scale"'), "name a folder beside the spec"),
    "kernel is a path": (with_('template = "scale"', 'kernel = "/etc"'), "name a folder beside the spec"),
    "budget of none": (with_("= 8", "= 0"), "budget.measurements is 0; want at least 1"),
    "budget without end": (with_("= 8", "= 1000000"), "want at most 100000"),
    "negative seconds": (with_("measurements = 8", "seconds = -3"), "budget.seconds is -3; want at least 1"),
    "text seconds": (with_("measurements = 8", 'seconds = "5 min"'), "budget.seconds is"),
    "half a measurement": (with_("= 8", "= 8.5"), "budget.measurements is 8.5; want an integer"),
    "unknown kind of device": (GOOD.encode() + b'[device]\nkind = "gpu"\n', "want one of cuda, cpu, replay"),
    "negative device": (GOOD.encode() + b"[device]\nindex = -1\n", "device.index is -1; want at least 0"),
    "force is text": (GOOD.encode() + b'[options]\nforce = "yes"\n', "options.force is"),
    "priority of a king": (GOOD.encode() + b"[options]\npriority = 1000\n", "want at most 100"),
    "key twice": (with_("n = 4096", "n = 4096\nn = 4096"), "not TOML"),
    "table twice": (GOOD.encode() + b"[budget]\n", "not TOML"),
    "key twice in JSON": (b'{"template": "scale", "problem": {"n": 1,\n "n": 2}}', 'has the key "n" twice'),
    "a lone surrogate": (JSON.replace("scale", "\\ud800").encode(), "lone surrogate"),
    "a key that is a lone surrogate": (JSON.replace('"n"', '"\\udfff"').encode(), "lone surrogate"),
    "deep lists": (b"a = " + b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "deep tables": (b"a = " + b"{a=" * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
    "deep JSON": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "fairly deep JSON": (b'{"problem": ' + b"[" * 30 + b"]" * 30 + b"}", "nested too deeply"),
    "a long dotted key": (b".".join([b"a"] * 100_000) + b" = 1\n", "nested too deeply"),
    "a long dotted table": (b"[" + b".".join([b"a"] * 100_000) + b"]\n", "nested too deeply"),
    "a dotted key in a table": (b"x = {" + b".".join([b"a"] * 100_000) + b" = 1}\n", "nested too deeply"),
    "many tables": (b"".join(b"[t%d]\n" % i for i in range(25_000)), "is not a known key"),
    "many keys": (b"".join(b"k%d = 1\n" % i for i in range(20_000)), "is not a known key"),
    "more than a quarter megabyte": (GOOD.encode() + b"#" * (256 * 1024), "at most 262144"),
    "an environment variable": (with_("4096", "${N}"), "not TOML"),
    "a template language": (with_("4096", "{{ n }}"), "not TOML"),
    "compiler flags": (GOOD.encode() + b'[compiler]\nflags = "-ccbin /bin/sh"\n', "compiler is not a known key"),
}


def _symbolic_link(path: Path) -> None:
    (path.parent / "real.toml").write_text(GOOD)
    path.symlink_to("real.toml")


def _sparse(path: Path) -> None:
    path.write_text(GOOD)
    os.truncate(path, 1 << 30)


def _unreadable(path: Path) -> None:
    path.symlink_to(path)  # a loop: opening it fails whoever asks


def _empty_folder(path: Path) -> None:
    path.mkdir()


def _folder_as_spec(path: Path) -> None:
    (path / "spec.toml").mkdir(parents=True)


def _linked_folder(path: Path) -> None:
    real = path.parent / "real"
    real.mkdir()
    (real / "spec.toml").write_text(GOOD)
    path.symlink_to(real)


def _kernel(path: Path, text: str) -> None:
    write_kernel(path.parent / "mine", text)
    path.write_text(changed('template = "scale"', 'kernel = "mine"', GOOD))


def _spoiled_kernel(path: Path, *, old: str, new: str) -> None:
    _kernel(path, changed(old, new))


def _linked_kernel(path: Path) -> None:
    _kernel(path, changed("[32, 64, 128]", "[32]"))
    (path.parent / "mine").rename(path.parent / "real")
    (path.parent / "mine").symlink_to("real")


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "nothing": (lambda path: None, "does not exist"),
    "a symbolic link": (_symbolic_link, "is a symbolic link"),
    "a link to itself": (_unreadable, "is a symbolic link"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "is a symbolic link"),
    "a pipe": (os.mkfifo, "is not a regular file"),
    "a sparse gigabyte": (_sparse, "has 1073741824 bytes"),
    "an empty folder": (_empty_folder, "spec.toml: does not exist"),
    "a folder as spec.toml": (_folder_as_spec, "is a folder"),
    "a link to a folder": (_linked_folder, "is a symbolic link"),
    "a kernel behind a link": (_linked_kernel, "a symbolic link"),
    **{
        name: (partial(_spoiled_kernel, old=old, new=new), message)
        for name, old, new, message in (
            ("a kernel without its source", '"kernel.cu"', '"gone.cu"', 'names "gone.cu", which is not there'),
            ("a kernel with a source above", '"kernel.cu"', '"../kernel.cu"', "inside the kernel's own folder"),
            ("a kernel with an undeclared name", "n % WORK", "n % WORKS", 'unknown name "WORKS"'),
            ("an unsatisfiable constraint", "n % WORK == 0", "n % (WORK * 4096) == 1", "leaves no configuration"),
        )
    },
}


def refused(path: Path, templates: Path) -> InputError:
    """The error, raised within a second of work, that names a file and what to do."""
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        loaded(path, templates)
    assert time.process_time() - started < 1.0
    error = caught.value
    assert error.remedy, str(error)
    assert error.file is not None
    assert str(error).startswith(Path(error.file).name)
    assert len(str(error)) < 600
    str(error).encode()  # printable wherever UTF-8 is
    return error


def loaded(path: Path, templates: Path) -> KernelSpec:
    spec = load_spec(path, template_dirs=[templates], default_device=DeviceRequest(), default_budget=Budget())
    ParamSpace(spec.kernel, spec.problem)
    return spec


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kernel(tmp_path_factory.mktemp("templates") / "scale").parent


def test_the_corpus_is_bad_because_of_what_was_done_to_it(tmp_path: Path, templates: Path) -> None:
    """Negative control: what each entry was made from is accepted."""
    for name, text in (("good.toml", GOOD), ("good.json", JSON), ("json.toml", JSON)):
        (tmp_path / name).write_text(text)
        assert loaded(tmp_path / name, templates).problem["n"] == 4096
    write_kernel(tmp_path / "mine")
    (tmp_path / "job.toml").write_text(changed('template = "scale"', 'kernel = "mine"', GOOD))
    assert loaded(tmp_path / "job.toml", templates).kernel.name == "scale"
    assert len(TEXTS) + len(FILES) >= 80


@pytest.mark.parametrize(("content", "message"), TEXTS.values(), ids=TEXTS.keys())
def test_a_bad_text_is_refused_in_words(tmp_path: Path, templates: Path, content: bytes, message: str) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    error = refused(path, templates)
    assert message in str(error)
    assert str(error).startswith("job.toml:")


@pytest.mark.parametrize(("make", "message"), FILES.values(), ids=FILES.keys())
def test_a_bad_file_is_refused_in_words(
    tmp_path: Path, templates: Path, make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "job.toml")
    assert message in str(refused(tmp_path / "job.toml", templates))


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.toml"
    path.write_text(GOOD)
    small = path.stat()
    path.write_text(GOOD + "#" * (256 * 1024))
    monkeypatch.setattr("tuner_daemon.intake.files.os.lstat", lambda _: small)
    monkeypatch.setattr("tuner_daemon.intake.files.os.fstat", lambda _: small)
    assert "has more than 262144 bytes" in str(refused(path, tmp_path))


def test_every_truncation_of_a_good_spec_is_accepted_or_refused_in_words(tmp_path: Path, templates: Path) -> None:
    path = tmp_path / "job.toml"
    errors: list[InputError] = []
    for end in range(len(GOOD)):
        path.write_text(GOOD[:end])
        errors += _error_of(path, templates)
    assert 0 < len(errors) < len(GOOD)
    assert all(error.remedy for error in errors)


def test_a_wrong_value_anywhere_in_json_is_refused_in_words(tmp_path: Path, templates: Path) -> None:
    path = tmp_path / "job.json"
    wrong: list[object] = [None, True, -1, 1.5, 1e300, "", "x", [], {}, [[]], {"a": {}}]
    errors: list[InputError] = []
    for key in ("template", "kernel", "problem", "budget", "device", "options", "parameters", "sources", "launch"):
        for value in wrong:
            path.write_text(json.dumps({**json.loads(JSON), key: value}))
            errors += _error_of(path, templates)
    assert len(errors) > 80
    assert all(error.remedy for error in errors)


def _error_of(path: Path, templates: Path) -> list[InputError]:
    """The error, or none; any exception but an InputError fails the test."""
    try:
        loaded(path, templates)
    except InputError as error:
        return [error]
    return []


def test_an_unsatisfiable_space_is_an_error_of_the_kernel(tmp_path: Path, templates: Path) -> None:
    _kernel(tmp_path / "job.toml", changed("n % WORK == 0", "WORK > 4"))
    error = refused(tmp_path / "job.toml", templates)
    assert isinstance(error, KernelError)
    assert '"WORK > 4" leaves no configuration of scale at n = 4096' in str(error)
