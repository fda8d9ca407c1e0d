"""What the telemetry of a run means, in sentences with its numbers."""

from __future__ import annotations

from scalebook.measure.telemetry.summary import Clocks, TelemetrySummary

# Reasons of NVML and of AMD's driver, by what to do about them.
POWER = ("sw_power_cap", "hw_power_brake_slowdown", "ppt_power")
HEAT = (
    "sw_thermal_slowdown", "hw_thermal_slowdown", "prochot_thermal", "socket_thermal",
    "vr_thermal", "hbm_thermal",
)  # fmt: skip
SHARE = 0.05  # of the samples: less often than this it explains nothing
NEAR_CAP = 0.97  # of the cap, for devices that do not tell reasons


def share_of(summary: TelemetrySummary, reasons: tuple[str, ...]) -> float | None:
    """Return the largest share of samples that show one of these reasons, None if none says."""
    told = summary.throttle_fractions
    return None if told is None else max((told.get(name, 0.0) for name in reasons), default=0.0)


def flags(summary: TelemetrySummary) -> tuple[str, ...]:
    """Return a sentence for each thing that held the devices back while steps were measured."""
    found = [_power(summary), _heat(summary), _other(summary), _falling(summary.clocks)]
    found += summary.notes
    if summary.devices and summary.reason:  # none at all is a reason, not a flag
        found.append(f"The telemetry ended early: {summary.reason.rstrip('.')}.")
    return tuple(sentence for sentence in found if sentence)


def _power(summary: TelemetrySummary) -> str | None:
    share, mean, cap = share_of(summary, POWER), summary.mean_power_watts, summary.power_cap_watts
    drawn = f" (mean {mean:.0f} W of {cap:.0f} W)" if mean and cap else ""
    if share is not None and share >= SHARE:
        held = f"{100 * share:.0f} % of the samples"
        return f"The power cap held clocks down in {held}{drawn}{_at(summary)}."
    if share is None and mean and cap and mean >= NEAR_CAP * cap:
        return f"The devices drew as much as their power cap allows{drawn}{_at(summary)}."
    return None


def _at(summary: TelemetrySummary) -> str:
    clocks = summary.clocks
    if clocks is None:
        return ""
    highest = clocks.highest_possible_mhz
    of = f" of {highest:,.0f}" if highest else ""
    return f": the clock was {clocks.mean_mhz:,.0f}{of} MHz on average"


def _heat(summary: TelemetrySummary) -> str | None:
    share, hottest = share_of(summary, HEAT), summary.max_temperature_celsius
    if share is None or share < SHARE:
        return None
    until = f", up to {hottest:.0f} °C" if hottest else ""
    return f"Heat held clocks down in {100 * share:.0f} % of the samples{until}{_at(summary)}."


def _other(summary: TelemetrySummary) -> str | None:
    told = summary.throttle_fractions or {}
    rest = {name: share for name, share in told.items() if name not in (*POWER, *HEAT)}
    often = [f"{name} in {100 * share:.0f} %" for name, share in rest.items() if share >= SHARE]
    return f"Other limits of the clocks by share of samples: {', '.join(often)}." if often else None


def _falling(clocks: Clocks | None) -> str | None:
    if clocks is None or clocks.falling is None:
        return None
    name, trend = clocks.falling
    return (
        f"The clock of {name} fell by {-100 * trend.change:.1f} % while steps were measured "
        f"({trend.first:,.0f} to {trend.last:,.0f} MHz): later steps ran slower for it."
    )
