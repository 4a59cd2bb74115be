"""The prefix cache of the prefill side: which leading tokens of a prompt need no prefill.

A radix tree of prompt runs with capacity in bytes, in HBM and behind it in host memory. A prompt's branch is
used as a whole, so the order of last use is kept only for the nodes at which prompts end; the least recently
used leaf goes first, from HBM to the host and from there for good. What is used again comes back into HBM,
and whatever leads to it with it: a node in HBM has no parent on the host. What is in use is pinned: it is not
in the order, stays, and counts as used when the last request gives it up. Other KV that lies in the same
memory is reserved, and the cache has the rest.

The simulated HBM may hold hundreds of millions of tokens, and a server's prompts are cut into short runs. So
that it does not fill the memory of the machine that simulates, the tree is bounded in runs too.
"""

from __future__ import annotations

from collections import OrderedDict

from agentload_simbackend._api import PromptRun
from agentload_simbackend._memory import KvShape
from agentload_simbackend._prefix_nodes import Match, Node
from agentload_simbackend._runs import equal_runs, tokens_before

MOST_RUNS = 4_000_000
"""Runs that the tree holds at most. A run takes up to 130 bytes here, so this is half a gigabyte. In blocks
of 64 tokens it is 256M tokens, 57 % of what nine Rubin instances can hold for Gemma 4 31B. Prompts of one run
or two, as generated sessions have in virtual time, never come near it."""


class PrefixCache:
    """Prompts that were prefilled: up to `capacity_bytes` of KV in HBM, `host_bytes` on the host.

    No more than `MOST_RUNS` runs in all.

    used_bytes, used_host_bytes: what is taken of the two. reserved_bytes: what other KV takes of HBM.
    """

    def __init__(self, capacity_bytes: int, host_bytes: int, kv: KvShape) -> None:
        self.capacity_bytes = capacity_bytes
        self.host_capacity_bytes = host_bytes
        self.reserved_bytes = 0
        self._kv = kv
        self.used_bytes = 0
        self.used_host_bytes = 0
        self.used_runs = 0
        self._root = Node(None, ("", 0), [], 0)
        self._order: OrderedDict[Node, None] = OrderedDict()
        self._host_order: OrderedDict[Node, None] = OrderedDict()

    def clear(self) -> None:
        """Lose all that is not in use."""
        while self._host_order:
            self._evict(self._host_order)
        while self._order:
            self._evict(self._order)

    @property
    def over(self) -> bool:
        """Whether HBM has less room than what is pinned and reserved takes."""
        return self.used_bytes + self.reserved_bytes > self.capacity_bytes

    def reserve(self, size_bytes: int) -> None:
        """Let other KV have so much of HBM, as far as nothing is in use there."""
        self.reserved_bytes += size_bytes
        if self.over:
            self._shrink()

    def unpin(self, node: Node) -> None:
        """Give a node up that `hit` or `insert` has pinned."""
        node.pins -= 1
        if not node.pins:
            if node is not self._root:
                self._order[node] = None
                if node.children:
                    self._account(node)
            if self.used_bytes + self.reserved_bytes > self.capacity_bytes:
                self._shrink()

    def hit(self, runs: list[PromptRun]) -> tuple[int, int, Node]:
        """Leading tokens of the prompt that are cached, and how many bytes come back from the host for them.

        Counts as a use of them, and pins the last node that they touch, which is returned too.
        """
        lone = self._lone(runs)
        if lone is not None:
            self._pin(lone)
            return min(runs[0][1], lone.tokens), 0, lone
        match = self._walk(runs)
        node = match.node
        if match.runs_in < len(node.runs):
            node = self._split(node, match.runs_in, match.tokens_in)
        came_bytes = self._bring_back(node)
        self._pin(node)
        self._shrink()
        return match.hit_tokens, came_bytes, node

    def insert(self, runs: list[PromptRun], tokens: int) -> Node:
        """Add a prompt of `tokens` tokens and pin it; what was used least recently gives way."""
        node = self._lone(runs)
        if node is not None and not (node.pins and tokens > node.tokens):
            if tokens > node.tokens:
                node.runs[0] = runs[0]
                node.tokens = tokens
                self._account(node)
        else:
            node = self._insert(runs, tokens)
        self._pin(node)
        self._shrink()
        return node

    def _pin(self, node: Node) -> None:
        """Keep a node in HBM, with its window even if others go on from it."""
        node.pins += 1
        if node.pins == 1:
            self._order.pop(node, None)
            if node.children and node is not self._root:
                self._account(node)

    def _lone(self, runs: list[PromptRun]) -> Node | None:
        """The node of a one-run prompt whose text stands alone in the tree: a session until it is cut."""
        if len(runs) == 1:
            node = self._root.children.get((runs[0][0], 0))
            if node is not None and len(node.runs) == 1 and not node.children and not node.on_host:
                return node
        return None

    def _insert(self, runs: list[PromptRun], tokens: int) -> Node:
        match = self._walk(runs)
        node = match.node
        rest = tokens - match.hit_tokens
        if match.runs_in < len(node.runs):
            node = self._split(node, match.runs_in, match.tokens_in)
        self._bring_back(node)
        if rest > 0:
            node = self._append(node, runs, match.run, match.offset, rest)
        return node

    def _walk(self, runs: list[PromptRun]) -> Match:
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
            return Match(child, equal, part, run, offset, hit)
        return Match(node, len(node.runs), 0, run, offset, hit)

    def _split(self, node: Node, runs_in: int, tokens_in: int) -> Node:
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
        upper = Node(node.parent, node.edge, upper_runs, upper_tokens)
        upper.on_host = node.on_host
        node.parent.children[node.edge] = upper
        node.parent, node.edge = upper, (cut[0], begins + tokens_in)
        node.runs, node.tokens = lower_runs, node.tokens - upper_tokens
        node.start += upper_tokens
        upper.children[node.edge] = node
        upper.in_hbm = 0 if node.on_host else 1
        self._account(upper)
        self._account(node)
        return upper

    def _append(self, node: Node, runs: list[PromptRun], run: int, offset: int, tokens: int) -> Node:
        """Add the rest of a prompt after `node`; a leaf is made longer in place, if it is not in use."""
        if node.children or node.pins or node is self._root:
            edge = (runs[run][0], offset)
            rest = runs[run:]
            rest[0] = PromptRun(edge[0], rest[0][1] - offset)
            child = node.children[edge] = Node(node, edge, rest, tokens)
            node.in_hbm += 1
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

    def _account(self, node: Node) -> None:
        """Bring what a node counts for up to date.

        Only the end of a branch keeps its sliding window, and what is in use.
        """
        now = node.tokens * self._kv.bytes_per_token
        if node.pins or not node.children:
            now = self._kv.transfer_bytes(node.tokens, node.start + node.tokens)
        if node.on_host:
            self.used_host_bytes += now - node.bytes
        else:
            self.used_bytes += now - node.bytes
        node.bytes = now
        self.used_runs += len(node.runs) - node.run_count
        node.run_count = len(node.runs)

    def _bring_back(self, node: Node) -> int:
        """Move a node and what leads to it from the host into HBM; return its bytes."""
        moved_bytes = 0
        while node.on_host:
            assert node.parent is not None
            node.on_host = False
            node.parent.in_hbm += 1
            self.used_host_bytes -= node.bytes
            self.used_bytes += node.bytes
            moved_bytes += node.bytes
            self._host_order.pop(node, None)
            node = node.parent
        return moved_bytes

    def _shrink(self) -> None:
        """Let the least recently used leave HBM for the host, and the host for good, until all fits.

        Who leaves the host may leave behind the end of a branch in HBM, which takes its window there.
        """
        while True:
            too_many = self.used_runs > MOST_RUNS
            if self.used_bytes + self.reserved_bytes > self.capacity_bytes and self._order:
                self._leave_hbm()
            elif self._host_order and (too_many or self.used_host_bytes > self.host_capacity_bytes):
                self._evict(self._host_order)
            elif too_many and self._order:
                self._evict(self._order)
            else:
                return

    def _leave_hbm(self) -> None:
        node, _ = self._order.popitem(last=False)
        parent = node.parent
        if parent is None or node.in_hbm:
            return  # its branches are in use later than itself; it comes back when it is the end of one
        node.on_host = True
        parent.in_hbm -= 1
        self.used_bytes -= node.bytes
        self.used_host_bytes += node.bytes
        if node.bytes > self.host_capacity_bytes and not node.children:
            self._remove(node)
        else:
            self._host_order[node] = None
        if parent is not self._root and not parent.in_hbm:
            _put_first(self._order, parent)

    def _evict(self, order: OrderedDict[Node, None]) -> None:
        node = next(iter(order))
        if node.children or node.parent is None:
            del order[node]  # as above
        else:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        """Take a leaf out of the tree; its parent is then the end of a branch itself, and as old."""
        parent = node.parent
        assert parent is not None
        (self._host_order if node.on_host else self._order).pop(node, None)
        del parent.children[node.edge]
        if node.on_host:
            self.used_host_bytes -= node.bytes
        else:
            self.used_bytes -= node.bytes
            parent.in_hbm -= 1
        self.used_runs -= node.run_count
        if parent is not self._root and not parent.children:
            self._account(parent)
            _put_first(self._host_order if parent.on_host else self._order, parent)


def _put_first(order: OrderedDict[Node, None], node: Node) -> None:
    """A node that is neither in the order nor in use becomes the one used least recently."""
    if node not in order and not node.pins:
        order[node] = None
        order.move_to_end(node, last=False)
