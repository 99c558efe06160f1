"""``python -m tuner_daemon.cli``: the same as the command ``tunerd``."""

from tuner_daemon.cli import main

main()
