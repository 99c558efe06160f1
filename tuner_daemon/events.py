"""What happens, as log records that a program can read: a name, a sentence, and fields."""

from __future__ import annotations

import logging


def tell(logger: logging.Logger, level: int, event: str, message: str, *arguments: object, **fields: object) -> None:
    """Logs one event. ``fields`` name what it is about: ``spec``, ``job``, ``candidate``."""
    logger.log(level, message, *arguments, extra={"event": event, "fields": fields}, stacklevel=2)
