"""Settings: one frozen object. The only place that reads the environment."""

from __future__ import annotations

import os
import socket
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tuner_daemon.errors import SettingsError

SYSTEM_FILE = Path("/etc/tuner-daemon/tunerd.toml")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceSettings(_Table):
    """The device a spec means when it names none."""

    kind: Literal["cuda", "cpu", "replay"] = "cuda"
    index: int = Field(0, ge=0)


class BudgetSettings(_Table):
    """The budget of a spec that names none. A spec may ask for more."""

    measurements: int = Field(64, ge=1)
    seconds: float = Field(300.0, gt=0)


class BuildSettings(_Table):
    """The compile pool and its cache."""

    jobs: int = Field(default_factory=lambda: max(1, len(os.sched_getaffinity(0))), ge=1)
    timeout_s: float = Field(60.0, gt=0)
    cache_limit_bytes: int = Field(2 * 2**30, ge=2**20)


class SearchSettings(_Table):
    """The loop: candidates per round, proposals that the cost model ranks, timed launches of each candidate."""

    batch: int = Field(8, ge=1)
    pool: int = Field(512, ge=8)
    samples: int = Field(15, ge=1)
    finalists: int = Field(8, ge=1)
    final_blocks: int = Field(30, ge=8)
    early_stop: bool = True
    seed: int = 0


class RetrainSettings(_Table):
    """Offline retraining."""

    policy_steps: int = Field(4000, ge=1)
    threads: int = Field(2, ge=1)
    min_rows: int = Field(200, ge=1)
    seed: int = 0


class MetricsSettings(_Table):
    """Where figures for Prometheus are published; nowhere unless it says so. Read once, at the start."""

    port: int = Field(0, ge=0, le=65535)
    textfile: str = ""
    every_s: float = Field(15.0, gt=0)


class Settings(BaseSettings):
    """Order: TUNERD_* variables (``TUNERD_BUDGET__SECONDS=60``), then the file, then the defaults here."""

    model_config = SettingsConfigDict(env_prefix="TUNERD_", env_nested_delimiter="__", frozen=True, extra="forbid")

    state_dir: Path = Field(default_factory=lambda: default_state_dir())
    template_dirs: tuple[Path, ...] = ()  # searched before the templates that ship
    seed_logs: tuple[Path, ...] = ()  # read-only logs that retraining also learns from
    allow_cpu_kernels: bool = False  # may the daemon run host code from a dropped spec?
    clock_policy: Literal["lock", "verify", "observe"] = "observe"
    poll_s: float = Field(0.5, gt=0)
    queue_limit: int = Field(10_000, ge=1)  # of the specs that wait, looked at per owner
    host: str = Field(default_factory=socket.gethostname)
    device: DeviceSettings = DeviceSettings()
    budget: BudgetSettings = BudgetSettings()
    build: BuildSettings = Field(default_factory=BuildSettings)
    search: SearchSettings = SearchSettings()
    retrain: RetrainSettings = RetrainSettings()
    metrics: MetricsSettings = MetricsSettings()

    @property
    def spool_dir(self) -> Path:
        return self.state_dir / "spool"

    @property
    def log_dir(self) -> Path:
        return self.state_dir / "log"

    @property
    def models_dir(self) -> Path:
        return self.state_dir / "models"

    @property
    def cache_dir(self) -> Path:
        return self.state_dir / "cache"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The file's tables come in through __init__, so the environment must stand before it.
        return env_settings, init_settings


def default_state_dir() -> Path:
    """systemd's StateDirectory=, else /var/lib/tuner-daemon for root, else the user's XDG state folder."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/tuner-daemon")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tuner-daemon"


def load_settings(file: Path | None = None) -> Settings:
    """Reads ``file``, else $TUNERD_SETTINGS, else /etc/tuner-daemon/tunerd.toml if it exists.

    Raises SettingsError that names file and key.
    """
    named = file or (Path(given) if (given := os.environ.get("TUNERD_SETTINGS")) else None)
    chosen = named or (SYSTEM_FILE if SYSTEM_FILE.is_file() else None)
    _refuse_unknown_variables()
    try:
        return Settings(**(_read_tables(chosen) if chosen else {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(
            first["msg"], file=chosen, key=key, remedy="see the table of settings in the README"
        ) from error


def _read_tables(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot be read: {error}", file=file) from error


def _refuse_unknown_variables() -> None:
    """A misspelt TUNERD_ variable is an error, as a misspelt key in the file is."""
    for name in os.environ:
        if name.startswith("TUNERD_") and name != "TUNERD_SETTINGS":
            key = name.removeprefix("TUNERD_").lower().split("__")[0]
            if key not in Settings.model_fields:
                raise SettingsError("is no setting", key=name, remedy="see the table of settings in the README")
