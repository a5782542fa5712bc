"""The table `changes` of a schema, from which `Backend.changes` answers.

Each transaction inserts a row for each line that it changes, with its own number. A token is a snapshot of PostgreSQL:
which transactions were visible. The next answer has those that were not, in whatever order they commit.

A row without a line is a gap: any line may have changed. With `trimmed`, it stands for the rows up to its number, which
were deleted.

The token also names the table, the timeline of the server, and when it was started. These change when the store is
restored from a backup, or from a copy of the server's files, and when a standby takes over that did not have all
transactions: numbers of lost transactions are used again.
"""

from __future__ import annotations

import re

from holdfast.backends.feed import build_token, foreign_token, parse_token
from holdfast.backends.interface import Changes
from holdfast.backends.postgres.binary_values import bind, unescape
from holdfast.backends.postgres.connection import ResultRows, Statement
from holdfast.backends.postgres.schema import CHANGES, quote_name

_KIND = "postgresql"
_SNAPSHOT = re.compile(r"[1-9]\d{0,18}:[1-9]\d{0,18}:(\d{1,19}(,\d{1,19})*)?")
_NOW = "1:1:"

_SINCE = """
SELECT pg_catalog.pg_current_snapshot()::text,
  (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()) || '-' || pg_catalog.to_regclass($2::text)::oid || '-'
    || (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint,
  pg_catalog.pg_snapshot_xmax($1::text::pg_snapshot) <= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()),
  c.xid IS NOT NULL, c.tenant, c.line
FROM (SELECT 1) AS one LEFT JOIN {table} c
  ON $1::text <> '{now}' AND c.xid >= pg_catalog.pg_snapshot_xmin($1::text::pg_snapshot)
  AND (c.trimmed OR NOT pg_catalog.pg_visible_in_snapshot(c.xid, $1::text::pg_snapshot))
"""

_FORGET_DELETED = """
WITH gone AS (
  DELETE FROM {schema}.changes c
  WHERE c.line IS NOT NULL AND c.xid < pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())
    AND NOT EXISTS (SELECT FROM {schema}.lines l WHERE l.tenant = c.tenant AND l.line = c.line)
  RETURNING c.xid, c.tenant
)
INSERT INTO {schema}.changes (xid, tenant, line, trimmed)
  SELECT pg_catalog.max(g.xid), g.tenant, NULL, true FROM gone g GROUP BY g.tenant
"""


def parse_since(since: str | None, where: str) -> tuple[str, str]:
    """Return the snapshot of a token, and the place that it is from."""
    if since is None:
        return _NOW, ""
    place, snapshot = parse_token(since, _KIND, 2, where)
    if not _SNAPSHOT.fullmatch(snapshot):
        raise foreign_token(since, where)
    return snapshot, place


def build_query(schema: str, snapshot: str) -> Statement:
    """Build the statement that finds the changes since a snapshot."""
    table = f"{quote_name(schema)}.{CHANGES}"
    return _SINCE.format(table=table, now=_NOW), [bind(snapshot), bind(table)]


def read_changes(snapshot: str, place: str, rows: ResultRows) -> Changes:
    """Read the changes from the rows of the statement."""
    now, here, is_past, *_ = rows[0]
    token = build_token(_KIND, here, now)
    found = [(tenant, line) for *_, exists, tenant, line in rows if exists]
    lines = {(unescape(tenant), unescape(line)) for tenant, line in found if line is not None}
    known = snapshot == _NOW or (place == here and is_past and all(line is not None for _, line in found))
    return Changes(list(lines), token, complete=known)


def forget_deleted_sql(schema: str) -> str:
    """Return the statement that removes the names of lines that do not exist any more."""
    return _FORGET_DELETED.format(schema=quote_name(schema))
