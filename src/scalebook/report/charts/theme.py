"""One look for all charts, light and dark, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Hues after Okabe and Ito (2008), made darker or lighter until each has a contrast of 3:1 or
# more with its background (WCAG 2.2, 1.4.11). The same place is the same hue in both.
PALETTE = {
    "light": (
        "#0068a8", "#c04e00", "#00806a", "#a3478c", "#8a6a00",
        "#4a54b8", "#66707f", "#c2255c", "#0b7285", "#7c4a1e",
    ),
    "dark": (
        "#5ab4ea", "#f0924e", "#36c5a2", "#dd9ccb", "#dfc04e",
        "#a3adf5", "#a9b2bf", "#ff8fa8", "#66d9e8", "#c99a6b",
    ),
}  # fmt: skip
GREY = PALETTE["light"][6]
FAINT = 0.75  # the least opacity of a mark: every hue keeps its contrast of 3:1
INK = {"light": "#1f2430", "dark": "#e4e7ec"}
MUTED = {"light": "#5b6472", "dark": "#a1a9b6"}
GRID = {"light": "#e3e6eb", "dark": "#333b48"}
SURFACE = {"light": "#ffffff", "dark": "#161a21"}


def config(mode: str) -> dict[str, Any]:
    """Return the Vega-Lite configuration of ``light`` or ``dark``."""
    ink, muted, grid = INK[mode], MUTED[mode], GRID[mode]
    axis = {
        "domainColor": muted,
        "gridColor": grid,
        "labelColor": ink,
        "labelFontSize": 12,
        "tickColor": muted,
        "titleColor": muted,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    return {
        "background": "transparent",
        "font": FONT,
        "locale": {
            "number": {
                "decimal": ".",
                "thousands": ",",
                "grouping": [3],
                "currency": ["", ""],
                "percent": "\N{NO-BREAK SPACE}%",
            }
        },
        "axis": axis,
        "axisY": {"labelLimit": 400},
        "legend": {
            "columns": 3,
            "symbolOpacity": 1,
            "labelColor": ink,
            "labelLimit": 380,
            "orient": "top",
            "titleColor": muted,
            "titleFontWeight": "normal",
        },
        "range": {"category": list(PALETTE[mode])},
        "rule": {"stroke": ink},
        "text": {"color": ink, "fontSize": 12},
        "title": {"anchor": "start", "color": ink, "fontSize": 13},
        "view": {"stroke": None},
        "style": {
            "halo": {"color": SURFACE[mode], "stroke": SURFACE[mode]},
            "ink": {"color": ink, "fill": ink},
            "on-bar": {"color": SURFACE[mode], "fill": SURFACE[mode], "fontSize": 11},
        },
        "bar": {"color": PALETTE[mode][0]},
        "point": {"color": PALETTE[mode][0], "opacity": 1},
        "line": {"color": PALETTE[mode][0], "strokeWidth": 2},
    }


def configs() -> dict[str, dict[str, Any]]:
    """Return both configurations by name; the page's script picks one by the reader's choice."""
    return {mode: config(mode) for mode in PALETTE}
