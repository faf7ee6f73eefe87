"""Confidence intervals of failure rates."""

from __future__ import annotations

import math

Z_95 = 1.959964
"""Quantile of the normal distribution for an interval that covers the rate in 95 of 100 cases."""


def wilson(failed: int, ran: int, *, z: float = Z_95) -> tuple[float, float]:
    """Return Wilson's score interval of a failure rate, which is right for few runs and for rates near 0 and 1.

    Args:
        failed: runs that failed.
        ran: all runs; 0 gives the whole range.
        z: quantile of the normal distribution.
    """
    if not ran:
        return 0.0, 1.0
    # https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval#Wilson_score_interval
    rate, spread = failed / ran, z * z / ran
    middle = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(rate * (1 - rate) / ran + spread / (4 * ran))
    return max(0.0, middle - half), min(1.0, middle + half)


def describe_rate(failed: int, ran: int) -> str:
    """Format ``failed in 3 of 20 runs: 15.0 % (5.2 to 36.0 %)``, with the interval in parentheses."""
    low, high = wilson(failed, ran)
    rate = failed / ran if ran else 0.0
    return f"failed in {failed} of {ran} runs: {100 * rate:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"
