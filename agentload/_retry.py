"""Whether a turn that failed is sent again, and when."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple, get_args

from agentload._options import FailureOptions
from agentload_traces import AgentloadError, ErrorKind

_NS_PER_S = 1_000_000_000

NEVER_RETRIED = ("interrupted", "internal")
"""What another attempt cannot mend: it is not the endpoint that failed."""


def check_failure(options: FailureOptions) -> None:
    """Raise `AgentloadError` for a kind of failure that there is not, or that is never retried."""
    known = [kind for kind in get_args(ErrorKind) if kind not in NEVER_RETRIED]
    for kind in _kinds(options):
        if kind not in known:
            raise AgentloadError(f"--retry-on: no kind of failure {kind!r}; there are {', '.join(known)}")
    if options.retries and not _kinds(options):
        raise AgentloadError(
            "--retry-on names no kind of failure, so --retries has nothing to do; leave it out"
        )


def _kinds(options: FailureOptions) -> tuple[str, ...]:
    return tuple(kind.strip() for kind in options.retry_on.split(",") if kind.strip())


class RetryPolicy(NamedTuple):
    """When a failed turn is sent again; no clock and no state.

    seed: of the jitter, which keeps turns that failed together from coming back together.
    """

    retries: int
    kinds: tuple[str, ...]
    wait_ns: int
    max_wait_ns: int
    seed: int

    @classmethod
    def of(cls, options: FailureOptions, seed: int) -> RetryPolicy:
        """The policy that the options ask for."""
        return cls(
            options.retries,
            _kinds(options),
            round(options.retry_wait_s * _NS_PER_S),
            round(options.retry_max_wait_s * _NS_PER_S),
            seed,
        )

    def wait_before_next_ns(
        self, failed: int, kind: ErrorKind | None, retry_after_s: float | None, turn: tuple[str, str]
    ) -> int | None:
        """How long to wait before the next attempt; `None`: there is none.

        failed: how many attempts of this turn have failed, this one included. retry_after_s: what the
        endpoint asked for; it is kept to, but one that asks for more than `max_wait_ns` is not asked again.
        turn: session id and turn id, by which the jitter differs.
        """
        if failed > self.retries or kind not in self.kinds:
            return None
        if retry_after_s is not None:
            asked_ns = round(min(max(retry_after_s, 0.0), 1e9) * _NS_PER_S)
            return asked_ns if asked_ns <= self.max_wait_ns else None
        longest_ns = min(self.wait_ns << min(failed - 1, 40), self.max_wait_ns)
        # Between half of it and all of it.
        return longest_ns // 2 + (longest_ns - longest_ns // 2) * self._draw(failed, turn) // _DRAWS

    def _draw(self, failed: int, turn: tuple[str, str]) -> int:
        text = "\0".join((str(self.seed), *turn, str(failed)))
        return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=4).digest(), "little")


_DRAWS = 1 << 32
