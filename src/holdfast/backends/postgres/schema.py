"""The SQL of a PostgreSQL schema: the declared tables, and views for people."""

from __future__ import annotations

from holdfast.backends.postgres.apply_function import apply_function_sql
from holdfast.backends.tables import (
    BRANCHES,
    EVENTS,
    FOLDS,
    JOBS,
    JOURNAL,
    LATER,
    LINES,
    LINKS,
    NODES,
    OBJECTS,
    QUARANTINE,
    REFS,
    STEPS,
    TABLES,
    WORDS,
    WRITES,
    JsonText,
    Table,
    WordList,
)

VERSION = 1
"""The layout, in the table `version`. Goes up when older versions of Holdfast cannot use the tables."""

OLDEST_SERVER = 150000
"""The oldest server that is supported: before PostgreSQL 15, views show rows that row-level security hides."""

_TYPES: dict[type, str] = {
    str: 'text COLLATE "C"',
    int: "bigint",
    bytes: "bytea",
    JsonText: "jsonb",
    WordList: "tsvector",
}

_COMMENTS: dict[Table, str] = {
    LINES: "One row for each line of steps: a thread, or the state of an agent",
    BRANCHES: "Branches other than 0, and where each leaves its base",
    STEPS: "The steps of lines, each with what it changed",
    FOLDS: "The roots of folded states, at the steps they were folded at",
    NODES: "Parts of folded states, by digest",
    OBJECTS: "Pieces of large values, by the digest of the whole value",
    WRITES: "Pending writes, by the step that they follow",
    REFS: "Tags, labels and pins of steps, and holds",
    JOURNAL: "Rows that are yet to be copied to another store",
    WORDS: "The words of steps, for searching",
    QUARANTINE: "Rows that a repair removed because they were damaged",
    JOBS: "Scheduled maintenance",
    EVENTS: "The audit: what was done or tried, by whom and why, by step",
    LINKS: "Relations of artifacts and changes, from either end",
}

# Not IF NOT EXISTS, which needs the privilege to create schemas even if this one exists.
_SCHEMA = """SET LOCAL client_min_messages = warning;
DO $$ BEGIN
  IF to_regnamespace({name}) IS NULL THEN
    CREATE SCHEMA {schema};
  END IF;
END $$;"""

_VIEWS = """
CREATE OR REPLACE VIEW {schema}.threads WITH (security_invoker = true) AS
  SELECT l.tenant, l.line AS thread, to_timestamp(l.created / 1e9) AS created,
    (SELECT count(*) FROM {schema}.steps s WHERE s.tenant = l.tenant AND s.line = l.line) - l.pruned AS steps,
    (SELECT count(*) + 1 FROM {schema}.branches b WHERE b.tenant = l.tenant AND b.line = l.line) AS branches,
    (SELECT to_timestamp(max(s.time) / 1e9) FROM {schema}.steps s WHERE s.tenant = l.tenant AND s.line = l.line) AS last
  FROM {schema}.lines l WHERE l.line NOT LIKE '␞%';
CREATE OR REPLACE VIEW {schema}.log WITH (security_invoker = true) AS
  SELECT tenant, line AS thread, branch, seq, id, to_timestamp(time / 1e9) AS time, kind, metadata,
    octet_length(body) AS bytes
  FROM {schema}.steps WHERE id <> '';
COMMENT ON VIEW {schema}.threads IS 'Threads, with the number of their steps and branches';
COMMENT ON VIEW {schema}.log IS 'Steps, without their content';
"""

_INTERNAL_TABLES = """
CREATE TABLE IF NOT EXISTS {schema}.clients (
  client text COLLATE "C" NOT NULL,
  slot integer NOT NULL,
  number bigint NOT NULL,
  outcomes integer[] NOT NULL,
  time timestamptz NOT NULL DEFAULT now(),
  tenant text COLLATE "C" NOT NULL DEFAULT coalesce(current_setting('holdfast.tenant', true), ''),
  PRIMARY KEY (client, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE {schema}.clients IS 'The outcomes of the last writes of each process, in case the answer is lost';
CREATE TABLE IF NOT EXISTS {schema}.version (version integer PRIMARY KEY);
COMMENT ON TABLE {schema}.version IS 'The layout of this schema';
"""


_WORD_INDEXES = """
CREATE INDEX IF NOT EXISTS words_found ON {schema}.words USING gin (words);
CREATE INDEX IF NOT EXISTS words_time ON {schema}.words (tenant, time, line, branch, seq);
"""

# Roles that may use the older tables of a schema may use its new ones.
_LATER_GRANTS = """
DO $$ DECLARE granted text; BEGIN
  FOR granted IN
    SELECT format('GRANT %s ON {tables} TO %s', a.privilege_type,
      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
    FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
    WHERE c.oid = {lines}::regclass AND a.grantee <> c.relowner
      AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
  LOOP
    EXECUTE granted;
  END LOOP;
END $$;
"""


def quote_name(name: str) -> str:
    """Quote a name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote text as a constant."""
    return "'" + text.replace("'", "''") + "'"


def schema_sql(schema: str, rls: bool = False, role: str = "") -> str:
    """Return the SQL that creates what a schema lacks; to be run in a transaction."""
    name = quote_name(schema)
    parts = [_SCHEMA.format(schema=name, name=quote_literal(name))]
    parts += [part for space in TABLES for part in (_table(name, space), *_indexes(name, space))]
    parts += [_WORD_INDEXES.format(schema=name), _later_grants(name)]
    parts += [_INTERNAL_TABLES.format(schema=name), _VIEWS.format(schema=name), apply_function_sql(name)]
    if rls:
        parts += [_policy(name, table) for table in table_names(clients=True)]
    if role:
        parts.append(_grants(name, quote_name(role)))
    parts.append(f"INSERT INTO {name}.version VALUES ({VERSION}) ON CONFLICT DO NOTHING;")  # noqa: S608 - a quoted name
    return "\n".join(parts)


def table_names(clients: bool = False) -> list[str]:
    """The names of the tables."""
    return [space.name for space in TABLES] + ["clients"] * clients


def _table(schema: str, space: Table) -> str:
    columns = [f"{name} {_TYPES[kind]} NOT NULL" for name, kind in space.all_columns.items()]
    lines = [*columns, "body bytea NOT NULL", f"PRIMARY KEY ({', '.join(space.key)})"]
    return (
        f"CREATE TABLE IF NOT EXISTS {schema}.{space.name} (\n  " + ",\n  ".join(lines) + "\n);\n"
        # Bodies are compressed already.
        f"ALTER TABLE {schema}.{space.name} ALTER COLUMN body SET STORAGE EXTERNAL;\n"
        f"COMMENT ON TABLE {schema}.{space.name} IS {quote_literal(_COMMENTS.get(space, space.name))};"
    )


def _indexes(schema: str, space: Table) -> list[str]:
    return [
        f"CREATE INDEX IF NOT EXISTS {space.name}_{index} ON {schema}.{space.name} ({', '.join(space.order(index))});"
        for index in space.indexes
    ]


def newest_table(schema: str) -> str:
    """The table that is created last: if it exists, all do."""
    return f"{quote_name(schema)}.{TABLES[-1].name}"


def _later_grants(schema: str) -> str:
    names = ", ".join(f"{schema}.{space.name}" for space in LATER)
    # Within a text within a format: quotes and percent signs are doubled.
    return _LATER_GRANTS.format(
        tables=names.replace("'", "''").replace("%", "%%"), lines=quote_literal(f"{schema}.{LINES.name}")
    )


def _policy(schema: str, table: str) -> str:
    # FORCE, so that it applies also to the owner of the tables, as whom most applications connect.
    return (
        f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;\n"
        f"DROP POLICY IF EXISTS tenant ON {schema}.{table};\n"
        f"CREATE POLICY tenant ON {schema}.{table} USING (tenant = current_setting('holdfast.tenant', true));"
    )


def _grants(schema: str, role: str) -> str:
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {role};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n"
        f"REVOKE INSERT, UPDATE, DELETE ON {schema}.version FROM {role};"
    )
