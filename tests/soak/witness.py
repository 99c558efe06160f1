"""``tunerd`` with a witness: ``python -m tests.soak.witness FILE serve …`` appends to FILE, a JSON line a row, what the
log has acknowledged."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from unittest import mock

from tuner_daemon.cli import main, service
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.storage.log import ParquetLog


def run() -> None:
    witness = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    append = ParquetLog.append

    def witnessed(log: ParquetLog, rows: Sequence[Measurement]) -> None:
        append(log, rows)
        lines = [json.dumps([row.key, row.job, row.ran.config.key]) + "\n" for row in rows]
        os.write(witness, "".join(lines).encode())

    longest_stop_s = float(os.environ.get("SOAK_LONGEST_STOP_S", service.LONGEST_STOP_S))
    with (
        mock.patch.object(ParquetLog, "append", witnessed),
        mock.patch.object(service, "LONGEST_STOP_S", longest_stop_s),
    ):
        main()


if __name__ == "__main__":
    run()
