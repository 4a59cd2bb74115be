"""How a server counts prompt tokens, learned from what it reports, so that prompts can be fitted to it.

A server has a tokenizer and a chat template of its own: it counts about `per_token` tokens for each o200k
token of text, `per_message` for each message and a constant for the whole. These three are fitted by least
squares to all reports of a run, from running sums and a weak prior (1, 4, 0).
"""

from __future__ import annotations

_PRIOR = (1.0, 4.0, 0.0)
_PRIOR_WEIGHT = (400e-6, 6.0, 1.0)
"""(10 tokens of noise / how far off the prior may be: 0.5 per token, 4 per message, 10 in all)^2."""

_SCALE = 1_000
"""Text is taken in thousands of tokens, which keeps the equations well conditioned."""

_MOST = 8.0
"""No tokenizer counts so many times more or less; what says so counts something else, and is not learned."""

_SURE = 3
"""After so many reports one that is far off counts only as far as `_FAR`."""

_FAR, _FAR_TOKENS = 0.1, 50.0
_STEP = 0.01


class TokenFit:
    """Learns how an endpoint counts, one for all sessions of a run, and says how many words to send.

    Before the first report a word is a token. With one report the slope is known to within the share of the
    template in it (0.1% of a 20k prompt); the share of messages is told apart from it by reports of
    different make. A history whose count was reported goes on from that number, so that errors do not add up:
    the next prompt is off by the error of the slope times its new text alone, under 1% of that text after one
    report of 1,000 tokens or more. A prompt that came out too long is made up for by shorter new text,
    at least one word, in as many turns as it takes.

    Deterministic: the same reports in the same order give the same answers.
    """

    def __init__(self) -> None:
        self._reports = 0
        self._products = [0] * 6
        self._targets = [0.0] * 3
        self._solved: tuple[float, float, float] | None = (1.0, 0.0, 0.0)
        self._ratio = 1.0

    @property
    def per_token(self) -> float:
        """Tokens that the server counts for one o200k token of text."""
        return self._solution()[0]

    @property
    def per_message(self) -> float:
        """Tokens that the server counts for what stands around a message."""
        return self._solution()[1]

    @property
    def words_per_token(self) -> float:
        """o200k tokens of text for one of the server's; kept as it is until it is 1% off.

        Text that several prompts share is scaled by it: a number that moved with each report would make equal
        prefixes differ.
        """
        self._solution()
        return self._ratio

    def expected(self, sent_tokens: int, messages: int) -> float:
        """What the server will count for a prompt of so many o200k tokens and messages."""
        per_token, per_message, constant = self._solution()
        return per_token * sent_tokens + per_message * messages + constant

    def words(self, wanted: float, messages: int = 0) -> int:
        """o200k tokens of text that the server counts as `wanted`, with so many messages around it."""
        per_token, per_message, _ = self._solution()
        return max(1, round((wanted - per_message * messages) / per_token))

    def learn(self, sent_tokens: int, messages: int, reported_tokens: int) -> bool:
        """Take what the server reported for a prompt; return whether it makes sense.

        A report that is more than 8 times off is left out, and after three reports one that is more than 10%
        off what was expected counts as if it were 10% off.
        """
        if not 0 < sent_tokens <= _MOST * reported_tokens or reported_tokens > _MOST * (sent_tokens + 1_000):
            return False
        reported, sensible = float(reported_tokens), True
        if self._reports >= _SURE:
            expected = self.expected(sent_tokens, messages)
            far = _FAR * expected + _FAR_TOKENS
            sensible = abs(reported - expected) <= 5 * far
            reported = min(max(reported, expected - far), expected + far)
        self._reports += 1
        row = (sent_tokens, messages, 1)
        pairs = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
        for place, (one, other) in enumerate(pairs):
            self._products[place] += row[one] * row[other]
        for place, value in enumerate(row):
            self._targets[place] += value * reported
        self._solved = None
        return sensible

    def _solution(self) -> tuple[float, float, float]:
        if self._solved is None:
            self._solved = self._solve()
            exact = 1 / self._solved[0]
            if abs(exact - self._ratio) > _STEP * self._ratio:
                self._ratio = exact
        return self._solved

    def _solve(self) -> tuple[float, float, float]:
        """Solve the 3 x 3 normal equations by elimination."""
        tt, tm, t1, mm, m1, n = self._products
        scale = float(_SCALE)
        rows = [
            [tt / scale / scale, tm / scale, t1 / scale, self._targets[0] / scale],
            [tm / scale, float(mm), float(m1), self._targets[1]],
            [t1 / scale, float(m1), float(n), self._targets[2]],
        ]
        prior = (_PRIOR[0] * scale, *_PRIOR[1:])
        for place, weight in enumerate(_PRIOR_WEIGHT):
            rows[place][place] += weight
            rows[place][3] += weight * prior[place]
        for place in range(3):
            for below in range(place + 1, 3):
                factor = rows[below][place] / rows[place][place]
                rows[below] = [a - factor * b for a, b in zip(rows[below], rows[place], strict=True)]
        found = [0.0] * 3
        for place in (2, 1, 0):
            known = sum(rows[place][other] * found[other] for other in range(place + 1, 3))
            found[place] = (rows[place][3] - known) / rows[place][place]
        per_token = min(max(found[0] / scale, 1 / _MOST), _MOST)
        return per_token, found[1], found[2]
