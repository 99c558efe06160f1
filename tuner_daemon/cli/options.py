"""How the words of a command line are read where typer has no way to say it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class ManyPaths(TyperCommand):
    """``--train A B`` means ``--train A --train B``: an option of this command takes all words up to the next option,
    as a shell's ``*.parquet`` gives them."""

    several = ("--train", "--test")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        current = ""
        for word in args:
            if word.startswith("-"):
                current = word if word in self.several else ""
                spread += [] if current else [word]
            else:
                spread += [current, word] if current else [word]
        return super().parse_args(ctx, spread)
