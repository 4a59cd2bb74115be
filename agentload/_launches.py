"""The sessions of a run in the order of the trace: each as often, from where and as far as it is played."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from itertools import islice

import msgspec.structs

from agentload._feed import Launch
from agentload._options import LoadOptions
from agentload_traces import Session, counted

_WORD_RANGE = 2**64


class Planned:
    """What a run is to play, counted as its sessions are read.

    sessions, turns: of all that were read, by whichever worker they are played, over all repetitions.
    whole: there are no more. short: sessions without the turn at which they were to start.
    """

    def __init__(self) -> None:
        self.sessions = self.turns = self.short = 0
        self.whole = False

    def conditions(self, load: LoadOptions) -> list[str]:
        """What the numbers of the run hold for, a sentence each."""
        if not self.short:
            return []
        return [
            f"{counted(self.short, 'session')} of {self.sessions} had no turn {load.start_turn} to start at,"
            " and started at the last turn."
        ]


def first_position(start_turn: str, seed: int, session: Session) -> int:
    """At which turn a session starts; at least one is left to be played."""
    if start_turn != "random":
        return max(0, min(int(start_turn), len(session.turns) - 1))
    key = f"{seed}\0{session.session_id}".encode("utf-8", "surrogatepass")
    word = int.from_bytes(blake2b(key, digest_size=8, person=b"start turn").digest(), "big")
    return word * len(session.turns) // _WORD_RANGE


def launches(sessions: Iterable[Session], load: LoadOptions, seed: int, planned: Planned) -> Iterator[Launch]:
    """The sessions as often as they are played, in the order of the trace, counted in `planned`.

    What is repeated has ids and a salt of its own: the second time "#2" is added to both. With repetitions
    the sessions are held in memory, if they cannot be read from `sessions` again.
    """
    for launch in islice(_repeated(sessions, load), load.max_sessions):
        session = launch.session
        first = first_position(load.start_turn, seed, session)
        left = len(session.turns) - first
        planned.sessions += 1
        planned.turns += left if load.max_turns is None else min(left, load.max_turns)
        planned.short += load.start_turn != "random" and first < int(load.start_turn)
        yield launch._replace(first_position=first)
    planned.whole = True


def _repeated(sessions: Iterable[Session], load: LoadOptions) -> Iterator[Launch]:
    salt = load.salt or ""
    held: list[Session] | None = [] if load.repeat > 1 and isinstance(sessions, Iterator) else None
    between = "#"
    for session in sessions:
        if load.repeat > 1:
            while between in session.session_id:
                between += "#"
        if held is not None:
            held.append(session)
        yield Launch(session, salt=salt)
    again = sessions if held is None else held
    for repetition in range(1, load.repeat):
        suffix = f"{between}{repetition + 1}"
        for session in again:
            yield Launch(_renamed(session, suffix), salt=f"{salt}#{repetition + 1}", repetition=repetition)


def _renamed(session: Session, suffix: str) -> Session:
    session_id = session.session_id + suffix
    turns = tuple(msgspec.structs.replace(turn, session_id=session_id) for turn in session.turns)
    return Session(session_id, turns)


def mine(all_launches: Iterable[Launch], share: tuple[int, int], done: Collection[str]) -> Iterator[Launch]:
    """Every n-th launch from the k-th on, for a share (k, n), without the sessions that are done."""
    own = islice(all_launches, share[0], None, share[1])
    return (launch for launch in own if launch.session.session_id not in done)
