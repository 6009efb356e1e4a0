"""Data of a matplotlib figure: `{type, title, series}` and the description of its axes, see axes.py.

The types are `line`, `scatter`, `bar`, `pie` and `box`. Each of `series` has a `label` and `points`, which are
`[x, y]` for lines and scatters, `[category, value]` for bars (histograms too) and pies (value: the share of the whole);
a series of a box plot is one box with its five numbers and `outliers` instead. Anything else that was drawn is of type
`unknown` and has no series. A figure with several charts is of type `multiple` and has them in `subplots`. A figure
with too many points has every n-th of them, and its series have `total_points`.
"""

import math

from kontor_code import axes as axis_data
from kontor_code.plain import plain

MAX_POINTS = 20_000


def watch_boxes():
    """A box plot leaves only lines behind: its numbers are kept where they are drawn from."""
    from matplotlib.axes import Axes

    draw = Axes.bxp

    def bxp(self, bxpstats, *args, **kwargs):
        drawn = draw(self, bxpstats, *args, **kwargs)
        self._kontor_boxes = [*getattr(self, "_kontor_boxes", []), *bxpstats]
        return drawn

    bxp.__doc__ = draw.__doc__
    Axes.bxp = bxp


def chart_of(figure):
    """The figure's chart, or None where nothing is drawn."""
    # The axes of a colour bar are a legend.
    drawn = [axes for axes in figure.axes if axes.has_data() and not hasattr(axes, "_colorbar")]
    if not drawn:
        return None
    step = _step(drawn)
    charts = [_chart(axes, step) for axes in drawn]
    if len(charts) == 1:
        if charts[0]["title"] is None:
            charts[0]["title"] = figure.get_suptitle() or None
        return charts[0]
    title = figure.get_suptitle() or None
    return {"type": "multiple", "title": title, **axis_data.undescribed(), "series": [], "subplots": charts}


def _step(drawn):
    """Every n-th point fits: n, over all charts of the figure."""
    try:
        count = sum(
            sum(len(line.get_xdata(orig=True)) for line in axes.lines)
            + sum(len(dots.get_offsets()) for dots in axes.collections)
            + len(axes.patches)
            for axes in drawn
        )
    except TypeError:
        return 1
    return max(1, math.ceil(count / MAX_POINTS))


def _chart(axes, step):
    title = axes.get_title() or None
    try:
        kind, series = _known(axes, step)
        about = axis_data.undescribed() if kind == "pie" else axis_data.described(axes)
    except Exception:  # A figure that cannot be read is still a picture.
        kind, series, about = "unknown", [], axis_data.undescribed()
    return {"type": kind, "title": title, **about, "series": series}


def _known(axes, step):
    # The points below have no third dimension.
    if axes.name != "3d":
        for kind, read in (("box", _boxes), ("pie", _slices), ("bar", _bars), ("line", _lines), ("scatter", _dots)):
            if series := read(axes, step):
                return kind, series
    return "unknown", []


def _lines(axes, step):
    series = []
    for line in axes.lines:
        xs, ys = line.get_xdata(orig=True), line.get_ydata(orig=True)
        if len(xs) > 0:
            points = [[plain(x), plain(y)] for x, y in zip(_listed(xs, step), _listed(ys, step))]
            series.append(_series(line, points, len(xs)))
    return series


def _dots(axes, step):
    from matplotlib.collections import PathCollection

    read = axis_data.values(axes.xaxis)
    series = []
    for dots in axes.collections:
        places = dots.get_offsets()
        if isinstance(dots, PathCollection) and len(places) > 0:
            points = [[read(x), plain(y)] for x, y in places[::step].tolist()]
            series.append(_series(dots, points, len(places)))
    return series


def _bars(axes, step):
    from matplotlib.container import BarContainer

    series = []
    for bars in axes.containers:
        if not isinstance(bars, BarContainer) or not bars.patches:
            continue
        lying = bars.orientation == "horizontal"
        read = axis_data.values(axes.yaxis if lying else axes.xaxis)
        points = []
        for bar in bars.patches[::step]:
            at = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            points.append([read(at), plain(bar.get_width() if lying else bar.get_height())])
        series.append(_series(bars, points, len(bars.patches)))
    return series


def _slices(axes, step):
    from matplotlib.patches import Wedge

    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    points = [[_label(wedge), plain((wedge.theta2 - wedge.theta1) / 360)] for wedge in wedges[::step]]
    return [_series(None, points, len(wedges))] if points else []


def _boxes(axes, step):
    return [
        {
            "label": str(box["label"]) if box.get("label") is not None else None,
            "min": plain(box["whislo"]),
            "first_quartile": plain(box["q1"]),
            "median": plain(box["med"]),
            "third_quartile": plain(box["q3"]),
            "max": plain(box["whishi"]),
            "outliers": [plain(flier) for flier in list(box.get("fliers", ()))[:MAX_POINTS]],
        }
        for box in getattr(axes, "_kontor_boxes", [])
    ]


def _series(artist, points, total):
    """`artist` is None where no single one has the label."""
    label = None if artist is None else _label(artist)
    series = {"label": label, "points": points}
    return series if len(points) == total else {**series, "total_points": total}


def _listed(values, step):
    # By position, even if a Series has its own index.
    some = (values.iloc if hasattr(values, "iloc") else values)[::step]
    return some.tolist() if hasattr(some, "tolist") and not hasattr(some, "dt") else list(some)


def _label(artist):
    label = artist.get_label()
    # matplotlib's default names of unnamed artists.
    return label if isinstance(label, str) and label and not label.startswith("_") else None
