"""The curves as a picture: one plot beside another, one line for each saver."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from benchmarks.measure import Curve


def draw(curves: Sequence[Curve], path: pathlib.Path) -> None:
    """Draw them, and write a PNG file."""
    # Slow to import, and only needed here.
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(curve.plot for curve in curves))
    savers = list(dict.fromkeys(curve.who for curve in curves))
    figure, plots = plt.subplots(1, len(names), figsize=(6 * len(names), 4.5), squeeze=False, layout="constrained")
    for name, plot in zip(names, plots[0], strict=True):
        for curve in curves:
            if curve.plot == name:
                plot.plot(curve.x, curve.y, label=curve.who, color=f"C{savers.index(curve.who)}")
        plot.set_title(name)
        plot.set_xlabel("turns")
        plot.grid(visible=True, alpha=0.3)
        plot.legend()
        if name.startswith("bytes"):
            plot.set_yscale("log")
        else:
            plot.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)
    plt.close(figure)
