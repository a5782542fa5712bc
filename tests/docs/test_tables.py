"""The page of tables has what the program declares, and nothing else."""

from holdfast.maintenance.jobs.builtin import JobTypes
from tools import tables


def test_the_tables_are_those_of_the_program() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert page == tables.page(), "run: python -m tools.tables"
    assert all(f"| `{name}` |" in page for name in JobTypes().names())
