"""Times of decode steps in closed form.

Between two changes of a batch its contexts grow steadily, and in an epoch one and the same thing limits the
step time throughout. So step k (from 0) of an epoch lasts a + b k, and k steps end at
start + a k + b k (k - 1) / 2, rounded to whole nanoseconds.
"""

from __future__ import annotations

from math import sqrt


class Epoch:
    """Steps of one replica from `first_step` on, until the `next` epoch begins.

    The chain runs forward only: an epoch lives as long as a request that decoded in it.
    """

    __slots__ = ("first_step", "growth_ns", "next", "start_ns", "step_ns")

    def __init__(self, first_step: int, start_ns: int, step_ns: float, growth_ns: float) -> None:
        self.first_step = first_step
        self.start_ns = start_ns
        self.step_ns = step_ns
        self.growth_ns = growth_ns
        self.next: Epoch | None = None

    def end_ns(self, steps: int) -> int:
        """When `steps` steps of the epoch are done."""
        return self.start_ns + int(steps * (self.step_ns + self.growth_ns * (steps - 1) / 2) + 0.5)

    def steps_until(self, at_ns: int) -> int:
        """The fewest steps that end at `at_ns` or later."""
        wanted = float(at_ns - self.start_ns)
        if wanted <= 0.0:
            return 0
        linear = self.step_ns - self.growth_ns / 2.0
        # The positive root of linear k + growth k^2 / 2 = wanted, in the form that holds for growth = 0.
        root = 2.0 * wanted / (linear + sqrt(linear * linear + 2.0 * self.growth_ns * wanted))
        steps = int(root)
        while self.end_ns(steps) < at_ns:
            steps += 1
        while steps and self.end_ns(steps - 1) >= at_ns:
            steps -= 1
        return steps

    def steps_done(self, at_ns: int) -> int:
        """How many steps have ended by `at_ns`."""
        return max(self.steps_until(at_ns + 1) - 1, 0)


def step_times(epoch: Epoch, join_step: int, steps: int) -> list[int]:
    """Ends of `steps` steps from `join_step` on, the first of them in `epoch`."""
    times: list[int] = []
    step, last = join_step, join_step + steps
    current: Epoch | None = epoch
    while step < last:
        assert current is not None
        end = last if current.next is None else min(last, current.next.first_step)
        first = current.first_step
        times.extend(current.end_ns(index - first) for index in range(step + 1, end + 1))
        step = max(step, end)
        current = current.next
    return times
