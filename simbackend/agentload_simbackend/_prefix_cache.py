"""The prefix cache of the prefill side: which leading tokens of a prompt need no prefill.

A radix tree of prompt runs with capacity in bytes. A prompt's branch is used as a whole, so the order of
last use is kept only for the nodes at which prompts end; the least recently used leaf goes first.

The simulated HBM may hold hundreds of millions of tokens, and a server's prompts are cut into short runs. So
that it does not fill the memory of the machine that simulates, the tree is bounded in runs too.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from agentload_simbackend._api import PromptRun
from agentload_simbackend._memory import KvShape
from agentload_simbackend._runs import equal_runs, tokens_before

MOST_RUNS = 4_000_000
"""Runs that the tree holds at most. A run takes up to 130 bytes here, so this is half a gigabyte. In blocks
of 64 tokens it is 256M tokens, 57 % of what nine Rubin instances can hold for Gemma 4 31B. Prompts of one run
each, as generated sessions have in virtual time, never come near it."""

_Edge = tuple[str | int, int]
"""Key of a run, and the token of that run at which a branch begins."""


class _Node:
    """Consecutive runs; the first of them may be the rest of a run that began in the parent."""

    __slots__ = ("bytes", "children", "edge", "parent", "run_count", "runs", "tokens")

    def __init__(self, parent: _Node | None, edge: _Edge, runs: list[PromptRun], tokens: int) -> None:
        self.parent = parent
        self.edge = edge
        self.runs = runs
        self.tokens = tokens
        self.children: dict[_Edge, _Node] = {}
        self.bytes = 0
        self.run_count = 0


class _Match(NamedTuple):
    """Where a prompt leaves the tree.

    node: the last node touched; `runs_in` whole runs and `tokens_in` tokens of the next run of it match
    (all of its runs: the whole node does).
    run, offset: the first token of the prompt that is not in the tree.
    """

    node: _Node
    runs_in: int
    tokens_in: int
    run: int
    offset: int
    hit_tokens: int


class PrefixCache:
    """Prompts that were prefilled, up to `capacity_bytes` of their KV and `MOST_RUNS` runs."""

    def __init__(self, capacity_bytes: int, kv: KvShape) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.used_runs = 0
        self._kv = kv
        self._root = _Node(None, ("", 0), [], 0)
        self._order: OrderedDict[_Node, None] = OrderedDict()

    def hit_tokens(self, runs: list[PromptRun]) -> int:
        """Leading tokens of the prompt that are cached; counts as a use of them."""
        lone = self._lone(runs)
        if lone is not None:
            self._order.move_to_end(lone)
            return min(runs[0][1], lone.tokens)
        match = self._walk(runs)
        self._use(match.node)
        return match.hit_tokens

    def insert(self, runs: list[PromptRun], tokens: int) -> None:
        """Add a prompt of `tokens` tokens; evict the least recently used until all fits."""
        node = self._lone(runs)
        if node is not None:
            if tokens > node.tokens:
                node.runs[0] = runs[0]
                node.tokens = tokens
                self._account(node)
        else:
            node = self._insert(runs, tokens)
        self._order.move_to_end(node)
        while self._order and (self.used_bytes > self.capacity_bytes or self.used_runs > MOST_RUNS):
            self._evict()

    def _lone(self, runs: list[PromptRun]) -> _Node | None:
        """The node of a one-run prompt whose text stands alone in the tree: what sessions mostly have."""
        if len(runs) == 1:
            node = self._root.children.get((runs[0][0], 0))
            if node is not None and len(node.runs) == 1 and not node.children:
                return node
        return None

    def _insert(self, runs: list[PromptRun], tokens: int) -> _Node:
        match = self._walk(runs)
        node = match.node
        rest = tokens - match.hit_tokens
        if rest > 0:
            if match.runs_in < len(node.runs):
                node = self._split(node, match.runs_in, match.tokens_in)
            node = self._append(node, runs, match.run, match.offset, rest)
        self._order[node] = None
        return node

    def _walk(self, runs: list[PromptRun]) -> _Match:
        node, run, offset, hit = self._root, 0, 0, 0
        while run < len(runs):
            key, tokens = runs[run]
            child = node.children.get((key, offset))
            if child is None:
                break
            pieces = child.runs
            first, wanted = pieces[0][1], tokens - offset
            if first != wanted:
                equal, part = 0, min(first, wanted)
            else:
                equal, part = 1 + equal_runs(pieces, runs, 1, run + 1), 0
                if equal < len(pieces) and run + equal < len(runs):
                    here, there = pieces[equal], runs[run + equal]
                    part = min(here[1], there[1]) if here[0] == there[0] else 0
            if equal == len(pieces) or (equal == len(pieces) - 1 and part == pieces[equal][1]):
                # The whole node matches; its last run may go on in the prompt.
                hit += child.tokens
                run, offset = run + equal, (offset if equal == 0 else 0) + part
                node = child
                continue
            hit += tokens_before(pieces, equal, child.tokens) + part
            run, offset = run + equal, (offset if equal == 0 else 0) + part
            if run < len(runs) and offset == runs[run][1]:
                run, offset = run + 1, 0
            if part == pieces[equal][1]:
                equal, part = equal + 1, 0
            return _Match(child, equal, part, run, offset, hit)
        return _Match(node, len(node.runs), 0, run, offset, hit)

    def _split(self, node: _Node, runs_in: int, tokens_in: int) -> _Node:
        """Cut a node after its first `runs_in` runs and `tokens_in` tokens; return the upper part."""
        assert node.parent is not None
        cut = node.runs[runs_in]
        upper_runs = node.runs[:runs_in]
        upper_tokens = tokens_before(node.runs, runs_in, node.tokens) + tokens_in
        begins = node.edge[1] if runs_in == 0 else 0
        lower_runs = node.runs[runs_in:]
        if tokens_in:
            upper_runs.append(PromptRun(cut[0], tokens_in))
            lower_runs[0] = PromptRun(cut[0], cut[1] - tokens_in)
        upper = _Node(node.parent, node.edge, upper_runs, upper_tokens)
        node.parent.children[node.edge] = upper
        node.parent, node.edge = upper, (cut[0], begins + tokens_in)
        node.runs, node.tokens = lower_runs, node.tokens - upper_tokens
        upper.children[node.edge] = node
        self._account(upper)
        self._account(node)
        return upper

    def _append(self, node: _Node, runs: list[PromptRun], run: int, offset: int, tokens: int) -> _Node:
        """Add the rest of a prompt after `node`; a leaf is made longer in place."""
        if node.children or node is self._root:
            edge = (runs[run][0], offset)
            rest = runs[run:]
            rest[0] = PromptRun(edge[0], rest[0][1] - offset)
            child = node.children[edge] = _Node(node, edge, rest, tokens)
            if node is not self._root:
                self._account(node)
            node = child
        else:
            if offset:
                key, have = node.runs[-1]
                node.runs[-1] = PromptRun(key, have + runs[run][1] - offset)
                run += 1
            node.runs.extend(runs[run:])
            node.tokens += tokens
        self._account(node)
        return node

    def _account(self, node: _Node) -> None:
        """Bring what a node counts for up to date: only the end of a branch keeps its sliding window."""
        now = node.tokens * self._kv.bytes_per_token
        if not node.children:
            now = self._kv.transfer_bytes(node.tokens, node.tokens)
        self.used_bytes += now - node.bytes
        node.bytes = now
        self.used_runs += len(node.runs) - node.run_count
        node.run_count = len(node.runs)

    def _use(self, node: _Node) -> None:
        if node is not self._root:
            self._order[node] = None
            self._order.move_to_end(node)

    def _evict(self) -> None:
        node, _ = self._order.popitem(last=False)
        parent = node.parent
        if node.children or parent is None:
            return  # its branches are in use later than itself; it comes back when it is the end of one
        del parent.children[node.edge]
        self.used_bytes -= node.bytes
        self.used_runs -= node.run_count
        if parent is not self._root and not parent.children:
            self._account(parent)
            if parent not in self._order:
                self._order[parent] = None
                self._order.move_to_end(parent, last=False)
