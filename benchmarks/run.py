"""Run the benchmarks: print a table, write `build/bench.json`; with `--check`, fail where a bound does not hold."""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import sys

from benchmarks import cases, store_cases
from benchmarks.measure import Figure

OUTPUT = pathlib.Path("build/bench.json")


def measure(check: bool) -> list[Figure]:
    figures = []
    for case in (*cases.CASES, *store_cases.CASES):
        print(f"… {(case.__doc__ or case.__name__).splitlines()[0]}", file=sys.stderr)
        found = case()
        if check and not all(figure.holds for figure in found):
            print("  a bound does not hold; measuring once more, in case the machine was busy", file=sys.stderr)
            found = case()
        figures += found
    return figures


def bound(figure: Figure) -> str:
    if figure.floor is not None:
        return f"at least {figure.floor:g}"
    return "" if figure.ceiling is None else f"at most {figure.ceiling:g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a figure is outside its bound")
    figures = measure(parser.parse_args().check)
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        state = "ok" if figure.holds else "MISSED"
        value = f"{figure.value:8.2f} {figure.unit}"
        print(f"{figure.name:<{width}}  {value:<18} {bound(figure):<14} {state:<7} {figure.note}")
    OUTPUT.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    OUTPUT.write_text(json.dumps({"machine": machine, "figures": [f._asdict() for f in figures]}, indent=1) + "\n")
    print(f"written to {OUTPUT}", file=sys.stderr)
    return int(parser.parse_args().check and not all(figure.holds for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
