"""Settings come from one file and the environment, and a misspelt key is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner_daemon.errors import SettingsError
from tuner_daemon.settings import load_settings


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNERD_SETTINGS", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, text: str) -> Path:
    file = folder / "tunerd.toml"
    file.write_text(text)
    return file


def test_the_file_gives_values_and_the_environment_overrides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, 'state_dir = "/s"\n[budget]\nmeasurements = 10\nseconds = 5\n')
    monkeypatch.setenv("TUNERD_BUDGET__SECONDS", "7")
    settings = load_settings(file)
    assert settings.state_dir == Path("/s")
    assert (settings.budget.measurements, settings.budget.seconds) == (10, 7.0)


def test_the_state_directory_of_the_service_manager_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/x:/var/lib/y")
    assert load_settings().state_dir == Path("/var/lib/x")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("stat_dir = '/s'", "stat_dir"),
        ("[budget]\nmeasurements = 0", "budget.measurements"),
        ("[device]\nkind = 'gpu'", "device.kind"),
        ("[search]\nbatches = 3", "search.batches"),
        ("poll_s = -1", "poll_s"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(write(tmp_path, text))
    assert caught.value.key == key
    assert "tunerd.toml" in str(caught.value)


def test_a_broken_or_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tunerd\.toml.*cannot be read"):
        load_settings(write(tmp_path, "state_dir = "))
    with pytest.raises(SettingsError, match=r"none\.toml.*cannot be read"):
        load_settings(tmp_path / "none.toml")


def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERD_STATEDIR", "/s")
    with pytest.raises(SettingsError, match="TUNERD_STATEDIR is no setting"):
        load_settings()


def test_settings_are_frozen() -> None:
    settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.__setattr__("poll_s", 1.0)
