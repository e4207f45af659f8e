"""Cost of work: tokens per joule, model FLOPs per joule, price per million tokens."""

from __future__ import annotations

SECONDS_PER_HOUR = 3600.0
NO_PRICE = "no price is known: --price PER_HOUR"
NO_POWER = "the device reports no power"


def rates_per_watt(
    tokens_per_s: float | None, samples_per_s: float | None, flops_per_s: float | None, power_w: float | None
) -> dict[str, float]:
    """Work per joule, by metric: work per second over watts of the same time. Empty if the power is not known."""
    if not power_w:
        return {}
    found = {}
    if samples_per_s:
        found["workload.samples_per_j"] = samples_per_s / power_w
    if tokens_per_s:
        found["workload.tokens_per_j"] = tokens_per_s / power_w
    if flops_per_s:
        found["workload.flops_per_j"] = flops_per_s / power_w
    return found


def cost_per_million_tokens(tokens_per_s: float, price_per_hour: float) -> float:
    """Price of a million tokens, in the currency of `price_per_hour`, which is the price of everything that the run uses."""
    return price_per_hour / (tokens_per_s * SECONDS_PER_HOUR) * 1e6
