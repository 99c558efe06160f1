"""The units as systemd reads them, and the example settings as the daemon reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tuner_daemon.settings import Settings, load_settings
from tuner_daemon.storage.spool import STATES

SYSTEMD = Path(__file__).parent.parent / "systemd"
SPOOL_FOLDERS = [*({*STATES} - {"incoming"}), "results"]
UNITS = sorted(path.name for path in SYSTEMD.iterdir() if path.suffix in {".service", ".timer"})
COMMENTED_SETTING = re.compile(r"^# (\w+ = )", re.MULTILINE)

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


def verify(folder: Path, *units: str) -> str:
    """What ``systemd-analyze verify`` has to say; empty if nothing."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(folder / unit) for unit in units)],
        capture_output=True,
        text=True,
        timeout=60,
        # The trailing colon keeps the system's own units in the search path.
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"},
    )
    return done.stdout + done.stderr or f"exit code {done.returncode}" * bool(done.returncode)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, with the commands that this machine lacks replaced by one that it has."""
    for unit in UNITS:
        text = (SYSTEMD / unit).read_text()
        text = text.replace("/opt/tuner-daemon/bin/tunerd", "/bin/true")
        (tmp_path / unit).write_text(text)
    return tmp_path


@needs_systemd
def test_systemd_finds_nothing_to_say_about_the_units(installed: Path) -> None:
    assert verify(installed, *UNITS) == ""


@needs_systemd
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("WatchdogSec=600", "WatchdogSeconds=600"),
        ("MemoryMax=75%", "MemoryMax=lots"),
        ("ExecStart=/bin/true", "ExecStart=/no/such/command"),
    ],
)
def test_a_fault_in_a_unit_is_found(installed: Path, right: str, wrong: str) -> None:
    unit = installed / "tunerd.service"
    text = unit.read_text()
    assert right in text
    unit.write_text(text.replace(right, wrong))
    assert verify(installed, "tunerd.service") != ""


@needs_systemd
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.endswith(".service")])
def test_a_service_is_exposed_by_at_most_two_of_ten(unit: str, tmp_path: Path) -> None:
    assert exposure(SYSTEMD / unit) <= 2.0
    bare = tmp_path / unit
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    assert exposure(bare) > 9.0


@needs_systemd
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.endswith(".service")])
def test_what_stays_open_is_explained_in_the_unit(unit: str, tmp_path: Path) -> None:
    assert unexplained(SYSTEMD / unit) == set()
    silent = tmp_path / unit
    silent.write_text(re.sub(r"^#.*\n", "", (SYSTEMD / unit).read_text(), flags=re.MULTILINE))
    assert unexplained(silent) != set()


def unexplained(unit: Path) -> set[str]:
    """Directives that add to the exposure and are in no comment."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--json=short", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    open_ones = {row["name"].split("=")[0] for row in json.loads(done.stdout) if not row["set"] and row["exposure"]}
    comments = "\n".join(line for line in unit.read_text().splitlines() if line.startswith("#"))
    return {name for name in open_ones if name not in comments}


def exposure(unit: Path) -> float:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert level, done.stdout + done.stderr
    return float(level[1])


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("systemd-tmpfiles"), reason="root makes users and folders")
def test_members_of_the_group_may_drop_but_not_look_behind(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for tool in (["systemd-sysusers"], ["systemd-tmpfiles", "--create"]):
        config = SYSTEMD / tool[0].replace("systemd-", "tunerd.")
        subprocess.run([*tool, f"--root={tmp_path}", str(config)], check=True, capture_output=True, timeout=60)
    user = next(line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines() if "tunerd" in line)
    state = tmp_path / "var/lib/tuner-daemon"
    modes = {str(path.relative_to(state)): path.stat().st_mode & 0o7777 for path in state.rglob("*")}
    assert modes.pop("spool/incoming") == 0o2770
    assert modes == dict.fromkeys(["spool", *(f"spool/{name}" for name in SPOOL_FOLDERS)], 0o2750)
    assert state.stat().st_mode & 0o7777 == 0o750
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (state, *state.rglob("*"))} == {
        (int(user[2]), int(user[3]))
    }


def test_units_folders_and_settings_agree_on_where_the_state_lies() -> None:
    service = (SYSTEMD / "tunerd.service").read_text()
    retrain = (SYSTEMD / "tunerd-retrain.service").read_text()
    assert "StateDirectory=tuner-daemon\n" in service
    assert "StateDirectory=tuner-daemon\n" in retrain
    spool = Settings(state_dir=Path("/var/lib/tuner-daemon")).spool_dir
    made = re.findall(rf"^d {spool}/(\w+) ", (SYSTEMD / "tunerd.tmpfiles").read_text(), re.MULTILINE)
    assert sorted(made) == sorted(["incoming", *SPOOL_FOLDERS])


def test_the_example_settings_are_the_defaults_of_the_service() -> None:
    example = load_settings(SYSTEMD / "tunerd.toml")
    assert example == Settings(state_dir=Path("/var/lib/tuner-daemon"))
    assert not example.allow_cpu_kernels


def test_the_example_settings_name_every_setting() -> None:
    text = COMMENTED_SETTING.sub(r"\1", (SYSTEMD / "tunerd.toml").read_text())
    assert names_in(tomllib.loads(text)) == setting_names(Settings)


def test_a_misspelt_setting_would_be_noticed() -> None:
    text = (SYSTEMD / "tunerd.toml").read_text().replace("finalists", "finalist")
    assert names_in(tomllib.loads(text)) - setting_names(Settings) == {"search.finalist"}


def names_in(table: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted names of a table's leaves."""
    return {
        name
        for key, value in table.items()
        for name in (names_in(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"})
    }


def setting_names(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Dotted names of every setting."""
    names: set[str] = set()
    for key, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names |= setting_names(inner, f"{prefix}{key}.")
        else:
            names.add(f"{prefix}{key}")
    return names
