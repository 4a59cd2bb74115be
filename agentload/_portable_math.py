"""Logarithm and exponential from + - * / alone, whose results IEEE 754 fixes to the last bit.

Those of C libraries differ in the last bit here and there, and arrival times would with them.
"""

from __future__ import annotations

from math import frexp, ldexp

_LN2 = 0.6931471805599453
_HALF_SQRT = 0.7071067811865476
_TERMS = 12  # of ln: the next would add less than 2e-19 of the value
_EXP_TERMS = 16  # of exp: less than 1e-19


def ln(x: float) -> float:
    """The natural logarithm of a positive finite number, to about 2e-16 of 1 or of the value."""
    fraction, exponent = frexp(x)
    if fraction < _HALF_SQRT:
        fraction, exponent = fraction * 2, exponent - 1
    t = (fraction - 1) / (fraction + 1)
    square, total = t * t, 0.0
    for odd in range(2 * _TERMS - 1, 0, -2):
        total = total * square + 1 / odd
    return 2 * t * total + exponent * _LN2


def exp(x: float) -> float:
    """e to the power of a number that is at most 0; 0 where it is too small for a float."""
    if x < -800:
        return 0.0
    halvings = round(x / _LN2)
    rest, total = x - halvings * _LN2, 1.0
    for divisor in range(_EXP_TERMS, 0, -1):
        total = 1 + total * rest / divisor
    return ldexp(total, halvings)
