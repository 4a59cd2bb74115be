"""A link that keeps an account of its own."""

from __future__ import annotations

from agentload_simbackend._flight import Flight
from agentload_simbackend._shared_link import SharedLink


class LedgerLink(SharedLink[Flight]):
    """A link, and apart from it the account of what it must have carried."""

    def __init__(self, bytes_per_ns: float, latency_ns: int) -> None:
        self.on: dict[Flight, int] = {}
        self.rate = self.busy_bytes = self.slack_bytes = 0.0
        self.whole_bytes = self.cut_bytes = self.at_ns = 0
        self.down = False
        super().__init__(bytes_per_ns, latency_ns)

    def book(self, now_ns: int) -> None:
        """While anything is on it and it is not down, it carries all that it can."""
        if self.on and not self.down:
            self.busy_bytes += (now_ns - self.at_ns) * self.rate
        self.at_ns = now_ns

    def retune(self, bytes_per_ns: float, latency_ns: int) -> None:
        self.rate = round(bytes_per_ns * (1 << 20)) / (1 << 20)
        super().retune(bytes_per_ns, latency_ns)

    def enter(self, flow: Flight, size_bytes: int, now_ns: int) -> None:
        self.book(now_ns)
        self.on[flow] = size_bytes
        super().enter(flow, size_bytes, now_ns)

    def serve(self, now_ns: int) -> list[Flight]:
        self.book(now_ns)
        done = super().serve(now_ns)
        for flow in done:
            self.whole_bytes += self.on.pop(flow)
            self.slack_bytes += self.rate  # of the last nanosecond
        return done

    def cut(self, flow: Flight, now_ns: int) -> None:
        self.book(now_ns)
        self.cut_bytes += self.on.pop(flow, 0)
        self.slack_bytes += 1

    def leave(self, flow: Flight, now_ns: int) -> None:
        self.cut(flow, now_ns)
        super().leave(flow, now_ns)

    def clear(self, now_ns: int) -> None:
        for flow in list(self.on):
            self.cut(flow, now_ns)
        super().clear(now_ns)

    def stop(self, now_ns: int) -> None:
        self.book(now_ns)
        self.down = True
        super().stop(now_ns)

    def go_on(self, now_ns: int) -> None:
        self.book(now_ns)
        self.down = False
        super().go_on(now_ns)

    def check(self) -> None:
        """Of a link that is idle."""
        assert self.on == {}
        assert self.whole_bytes <= self.sent_bytes <= self.whole_bytes + self.cut_bytes
        assert self.busy_bytes - self.slack_bytes - 1 <= self.sent_bytes <= self.busy_bytes + 1
