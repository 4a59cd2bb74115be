"""Who waits for whom in a session, and each turn's place in it."""

from __future__ import annotations

from collections.abc import Sequence

from agentload_traces import Turn


class TurnGraph:
    """The turns from `first` on, by their positions in `turns`; none waits for those before it.

    after: for each turn, those that wait for it and its tool calls. children: those that wait for its
    response alone. waits: for how many turns each waits. places: index among the turns of its agent, and the
    agent's depth; in the whole session.
    """

    def __init__(self, turns: Sequence[Turn], first: int) -> None:
        count = len(turns)
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.children: list[list[int]] = [[] for _ in range(count)]
        self.waits = [0] * count
        self.places: list[tuple[int, int]] = [(0, 0)] * count
        position = {turn.turn_id: index for index, turn in enumerate(turns)}
        seen: dict[str | None, int] = {}
        depth: dict[str | None, int] = {None: 0}
        for index, turn in enumerate(turns):
            agent = turn.agent_id
            waited_for = [(self.after, position[earlier]) for earlier in turn.wait_for]
            if turn.parent_turn_id is not None:
                parent = position[turn.parent_turn_id]
                depth.setdefault(agent, depth.get(turns[parent].agent_id, 0) + 1)
                waited_for.append((self.children, parent))
            for released, earlier in waited_for:
                if earlier >= first:
                    released[earlier].append(index)
                    self.waits[index] += 1
            turn_index = seen.get(agent, 0)
            seen[agent] = turn_index + 1
            self.places[index] = (turn_index, depth.get(agent, 0))
