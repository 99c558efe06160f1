"""What travels with a spec that names files beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spools import Clock, claim_first, drop_spec, spool_at, where, whole_specs
from tuner_daemon.storage import companions
from tuner_daemon.storage.spool import Spool

INLINE = '[sources]\ncpu = "mine.c"\n'


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Spool:
    return spool_at(tmp_path / "spool", clock)


def test_what_lies_beside_a_spec_is_copied_for_the_job(spool: Spool, clock: Clock) -> None:
    kernel = spool.incoming / "my_sgemm"
    kernel.mkdir()
    (kernel / "kernel.toml").write_text('name = "sgemm"')
    (spool.incoming / "other.cu").write_text("// not named")
    (spool.incoming / "inline.cu").write_text("// first")
    drop_spec(spool, text='kernel = "my_sgemm"\n[sources]\ncuda = { file = "inline.cu", entry = "f" }\nx = "../etc"\n')
    assert spool.counts()["incoming"] == 1
    claimed = claim_first(spool, clock)
    assert claimed.path.name == "a.toml"
    assert sorted(p.name for p in claimed.path.parent.iterdir()) == ["a.toml", "inline.cu", "my_sgemm"]
    (spool.incoming / "inline.cu").write_text("// changed while the job runs")
    assert (claimed.path.parent / "inline.cu").read_text() == "// first"
    spool.finish(claimed, "j")
    assert not claimed.path.exists()
    assert where(spool.root) == {"done": ["a.toml"], "incoming": ["inline.cu", "my_sgemm", "other.cu"]}


def test_a_kernel_beside_the_spec_that_cannot_be_copied_fails_the_spec(spool: Spool, clock: Clock) -> None:
    kernel = spool.incoming / "mine"
    kernel.mkdir()
    (kernel / "kernel.toml").write_text("")
    drop_spec(spool, text='kernel = "mine"')
    entry = whole_specs(spool, clock)[0]
    (kernel / "kernel.cu").symlink_to("/etc/passwd")
    assert spool.claim(entry) is None
    assert "cannot be copied" in (spool.root / "failed" / "a.toml.reason.txt").read_text()


def test_a_spec_that_is_no_toml_names_no_companions(tmp_path: Path) -> None:
    spec = tmp_path / "a.toml"
    for text in ("not toml", "[" * 5000, '"\\q"'):
        spec.write_text(text)
        assert companions.gather(spec, tmp_path, tmp_path / ".work") == spec


def test_headers_of_a_source_beside_the_spec_are_copied_for_the_job(spool: Spool, clock: Clock) -> None:
    (spool.incoming / "mine.c").write_text('#include "a.h"\n')
    (spool.incoming / "a.h").write_text('#include "b.h"\n#include "missing.h"\n')
    (spool.incoming / "b.h").write_text("// b")
    (spool.incoming / "unused.h").write_text("// unused")
    drop_spec(spool, text=INLINE)
    claimed = claim_first(spool, clock)
    assert sorted(p.name for p in claimed.path.parent.iterdir()) == ["a.h", "a.toml", "b.h", "mine.c"]


def test_headers_are_submitted_with_the_spec_where_they_are(spool: Spool, clock: Clock, tmp_path: Path) -> None:
    spec = tmp_path / "mine" / "gemm.toml"
    (spec.parent / "sub").mkdir(parents=True)
    spec.write_text(INLINE)
    (spec.parent / "mine.c").write_text('#include "sub/a.h"\n#include "../outside.h"\n')
    (spec.parent / "sub" / "a.h").write_text("// a")
    (tmp_path / "outside.h").write_text("// not ours")
    spool.submit(spec, extra=companions.beside(spec))
    claimed = claim_first(spool, clock)
    found = sorted(str(p.relative_to(claimed.path)) for p in claimed.path.rglob("*"))
    assert found == ["mine.c", "spec.toml", "sub", "sub/a.h"]


def test_a_source_whose_headers_cannot_be_followed_travels_alone(tmp_path: Path) -> None:
    spec = tmp_path / "a.toml"
    spec.write_text(INLINE)
    (tmp_path / "mine.c").write_text("".join(f'#include "{n}.h"\n' for n in range(300)))
    for n in range(300):
        (tmp_path / f"{n}.h").write_text("")
    assert companions.beside(spec) == [tmp_path / "mine.c"]
