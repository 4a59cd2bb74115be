"""The nodes of the prefix cache's tree of prompt runs."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend._api import PromptRun

Edge = tuple[str | int, int]
"""Key of a run, and the token of that run at which a branch begins."""


class Node:
    """Consecutive runs; the first of them may be the rest of a run that began in the parent."""

    __slots__ = (
        "bytes",
        "children",
        "edge",
        "in_hbm",
        "on_host",
        "parent",
        "pins",
        "run_count",
        "runs",
        "start",
        "tokens",
    )

    def __init__(self, parent: Node | None, edge: Edge, runs: list[PromptRun], tokens: int) -> None:
        self.parent = parent
        self.edge = edge
        self.runs = runs
        self.tokens = tokens
        self.start: int = 0 if parent is None else parent.start + parent.tokens
        """How many tokens lead to it."""
        self.children: dict[Edge, Node] = {}
        self.bytes = 0
        self.run_count = 0
        self.on_host = False
        self.in_hbm = 0
        """How many of its children are in HBM."""
        self.pins = 0
        """By how many requests it is in use: till then it stays in HBM, and so does what leads to it."""


class Match(NamedTuple):
    """Where a prompt leaves the tree.

    node: the last node touched; `runs_in` whole runs and `tokens_in` tokens of the next run of it match
    (all of its runs: the whole node does).
    run, offset: the first token of the prompt that is not in the tree.
    """

    node: Node
    runs_in: int
    tokens_in: int
    run: int
    offset: int
    hit_tokens: int
