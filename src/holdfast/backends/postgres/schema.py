"""The SQL of a PostgreSQL schema: the declared tables, and views for people."""

from __future__ import annotations

from holdfast.backends.postgres.apply_function import apply_function_sql
from holdfast.backends.tables import (
    BEHIND,
    BRANCHES,
    CONVERSATION_HISTORY,
    EVENTS,
    FIELDS,
    FOLDS,
    HEADS,
    JOBS,
    JOURNAL,
    KEYS,
    LINES,
    LINKS,
    METADATA,
    NODES,
    OBJECTS,
    QUARANTINE,
    READABLE,
    REFS,
    STATE_TRANSITIONS,
    STATE_VALUES,
    STEPS,
    TABLES,
    TRANSITIONS,
    WORDS,
    WRITES,
    JsonText,
    Table,
    WordList,
    agent_view,
)
from holdfast.backends.time_index import FAILED, ORIGIN, RARE, THREAD_STEP, stopped

VERSION = 1
"""The layout, in the table `version`. Goes up when older versions of Holdfast cannot use the tables."""

CHANGES = "changes"
"""The name of the table of changes."""

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
    JOBS: "Scheduled maintenance, such as pruning, and when it is due",
    EVENTS: "The audit: what was done or tried, by whom and why, by step",
    LINKS: "Relations of artifacts and changes, from either end",
    KEYS: "Encrypted keys of an encrypted store: whoever deletes one erases what it encrypts",
    FIELDS: "The fields of threads that lists filter by, from either end",
    BEHIND: "The checkpoints that tables for people do not have yet",
    HEADS: "The latest checkpoint of each thread and agent, for people to query",
    STATE_VALUES: "The channels of the latest state of each thread, as JSON",
    CONVERSATION_HISTORY: "The messages in the latest state of each thread, one row each",
    TRANSITIONS: "What each checkpoint changed, and which one it follows",
    STATE_TRANSITIONS: "The transitions of agents, also those that failed or were refused",
    METADATA: "The metadata of each checkpoint, one row per entry",
}

_COLUMN_COMMENTS = {
    "threads.tenant": "Whose thread it is; empty without tenants",
    "threads.thread": "The name of the thread",
    "threads.created": "When its first checkpoint was saved",
    "threads.steps": "How many checkpoints it has, on all branches",
    "threads.branches": "How many branches it has",
    "threads.time": "When its last checkpoint was saved",
    "log.tenant": "Whose thread it is; empty without tenants",
    "log.thread": "The name of the thread; other names start with the character U+241E, such as those of agents",
    "log.branch": "The number of the branch; 0 is main",
    "log.seq": "The number of the checkpoint on its branch, from 0",
    "log.id": "The id of the checkpoint",
    "log.time": "When it was saved",
    "log.kind": "What saved it: save, fork, merge, restore and so on",
    "log.metadata": "What its program said about it; NULL if nothing",
    "log.bytes": "What it takes, without folded states and large values",
    "heads.time": "When the checkpoint was saved: text in UTC that sorts; cast it to timestamptz",
    "agent_states.tenant": "Whose agent it is; empty without tenants",
    "agent_states.thread": "The name of its line, as in the tables",
    "agent_states.agent": "The id of the agent",
    "agent_states.type": "The name under which its class is registered",
    "agent_states.status": "Its status in its lifecycle",
    "agent_states.state": "The state of its machine; empty without one",
    "agent_states.version": "How many times it was saved",
    "agent_states.created": "When it was saved first: text in UTC that sorts; cast it to timestamptz",
    "agent_states.time": "When it was saved last: text in UTC that sorts; cast it to timestamptz",
    "agent_states.checkpoint": "The id of the last save",
    "agent_states.configuration": "Its configuration, as JSON",
    "agent_states.fields": "The fields of its class, as JSON",
    "agent_states.context": "Its context, as JSON",
    "agent_states.tools": "Its tools, their permissions and statistics, as JSON",
    "agent_states.workflow": "The progress of its workflow, as JSON",
    "agent_states.metadata": "Its metadata, as JSON",
    "state_values.kind": "value, conversation (its messages are in conversation_history), or left out (too large)",
    "state_values.checkpoint": "The checkpoint that changed the channel last",
    "state_values.time": "When that was: text in UTC that sorts; cast it to timestamptz",
    "conversation_history.number": "The place of the message in its channel, from 0",
    "conversation_history.checkpoint": "The checkpoint that added the message",
    "conversation_history.time": "When that was: text in UTC that sorts; cast it to timestamptz",
    "state_transitions.thread": "The name of the line of the agent; agent has its id",
    "state_transitions.success": "true or false; a transition that failed or was refused has an error",
    "state_transitions.time": "When it was tried: text in UTC that sorts; cast it to timestamptz",
    "transitions.changed": "The names of the channels that the checkpoint changed",
    "transitions.time": "When it was saved: text in UTC that sorts; cast it to timestamptz",
}

# Not IF NOT EXISTS, which needs the privilege to create schemas even if this one exists.
_SCHEMA = """SET LOCAL client_min_messages = warning;
-- Functions that others put into the path are not used: neither now, nor by the views and policies.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$ BEGIN
  IF to_regnamespace({name}) IS NULL THEN
    CREATE SCHEMA {schema};
  END IF;
END $$;"""

# The log joins the lines, whose index finds a thread also without its tenant.
_VIEWS = """
CREATE OR REPLACE VIEW {schema}.threads WITH (security_invoker = true) AS
  SELECT l.tenant, l.line AS thread, to_timestamp(l.created / 1e9) AS created,
    (SELECT count(*) FROM {schema}.steps s WHERE s.tenant = l.tenant AND s.line = l.line) - l.pruned AS steps,
    (SELECT count(*) + 1 FROM {schema}.branches b WHERE b.tenant = l.tenant AND b.line = l.line) AS branches,
    (SELECT to_timestamp(max(s.time) / 1e9) FROM {schema}.steps s WHERE s.tenant = l.tenant AND s.line = l.line) AS time
  FROM {schema}.lines l WHERE l.line NOT LIKE '␞%';
CREATE OR REPLACE VIEW {schema}.log WITH (security_invoker = true) AS
  SELECT l.tenant, l.line AS thread, s.branch, s.seq, s.id, to_timestamp(s.time / 1e9) AS time, s.kind,
    nullif(replace(s.metadata, '\\u0000', '\\ufffd'), '')::jsonb AS metadata, octet_length(s.body) AS bytes
  FROM {schema}.lines l JOIN {schema}.steps s ON s.tenant = l.tenant AND s.line = l.line WHERE s.id <> '';
CREATE OR REPLACE VIEW {schema}.agent_states WITH (security_invoker = true) AS {agents};
COMMENT ON VIEW {schema}.agent_states IS 'The latest state of each agent, if the store has tables for people';
COMMENT ON VIEW {schema}.threads IS 'Threads, with the number of their checkpoints and branches';
COMMENT ON VIEW {schema}.log IS 'Checkpoints of all threads and agents, without their content';
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
CREATE TABLE IF NOT EXISTS {schema}.changes (
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  tenant text COLLATE "C" NOT NULL DEFAULT coalesce(current_setting('holdfast.tenant', true), ''),
  line text COLLATE "C",
  trimmed boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX IF NOT EXISTS changes_xid ON {schema}.changes (xid);
COMMENT ON TABLE {schema}.changes IS 'Which lines the last transactions changed';
CREATE TABLE IF NOT EXISTS {schema}.version (version integer PRIMARY KEY);
COMMENT ON TABLE {schema}.version IS 'The layout of this schema';
"""


# People who ask for a thread seldom name its tenant, with which all keys start.
_THREAD_INDEXES = {LINES: "line"} | dict.fromkeys(READABLE, "thread")

_WORD_INDEXES = """
CREATE INDEX IF NOT EXISTS words_found ON {schema}.words USING gin (words);
CREATE INDEX IF NOT EXISTS words_time ON {schema}.words (tenant, time, line, branch, seq);
"""

CONTAINS = "pg_catalog.strpos({}, {}) > 0"
"""How a condition says that a column has a text in it."""

_ORIGIN = CONTAINS.format("metadata", ORIGIN)

# By time, across lines; what is looked for among many events, and what agents did.
_TIME_INDEXES = {
    "steps_time": f"steps (tenant, time) WHERE {THREAD_STEP}",
    "steps_origin": f"steps (tenant, time) WHERE {_ORIGIN}",
    "events_correlation": "events (tenant, correlation, time) WHERE correlation <> ''",
    "events_actor": "events (tenant, actor, time) WHERE actor <> ''",
    "events_cause": "events (tenant, cause, time) WHERE cause <> ''",
    "events_rare": f"events (tenant, kind, time) WHERE {RARE}",
    "events_failed": f"events (tenant, time) WHERE {FAILED}",
    "refs_stopped": f"refs (tenant, line) WHERE {stopped(CONTAINS)}",
    "events_time": "events (tenant, time, kind)",
    "state_transitions_agent": "state_transitions (agent, time)",
    "heads_agent": "heads (agent) WHERE agent <> ''",
    "conversation_history_agent": "conversation_history (agent, number) WHERE agent <> ''",
}


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
    parts += [
        f"CREATE INDEX IF NOT EXISTS {index} ON {name}.{definition};" for index, definition in _TIME_INDEXES.items()
    ]
    parts += [_WORD_INDEXES.format(schema=name), _INTERNAL_TABLES.format(schema=name)]
    parts += [_VIEWS.format(schema=name, agents=agent_view(f"{name}.")), apply_function_sql(name)]
    parts += [
        f"COMMENT ON COLUMN {name}.{column} IS {quote_literal(text)};" for column, text in _COLUMN_COMMENTS.items()
    ]
    if rls:
        parts += [_policy(name, table) for table in table_names(clients=True)]
    if role:
        parts.append(_grants(name, quote_name(role)))
    parts.append(f"INSERT INTO {name}.version VALUES ({VERSION}) ON CONFLICT DO NOTHING;")  # noqa: S608 - a quoted name
    return "\n".join(parts)


def table_names(clients: bool = False) -> list[str]:
    """The names of the tables."""
    return [space.name for space in TABLES] + [CHANGES, "clients"] * clients


def _table(schema: str, space: Table) -> str:
    columns = [f"{name} {_TYPES[kind]} NOT NULL" for name, kind in space.all_columns.items()]
    lines = [*columns, "body bytea NOT NULL", f"PRIMARY KEY ({', '.join(space.key)})"]
    return (
        f"CREATE TABLE IF NOT EXISTS {schema}.{space.name} (\n  " + ",\n  ".join(lines) + "\n);\n"
        # Bodies are compressed already.
        f"ALTER TABLE {schema}.{space.name} ALTER COLUMN body SET STORAGE EXTERNAL;\n"
        f"COMMENT ON TABLE {schema}.{space.name} IS {quote_literal(_COMMENTS[space])};"
    )


def _indexes(schema: str, space: Table) -> list[str]:
    indexes = {index: ", ".join(space.order(index)) for index in space.indexes}
    if space in _THREAD_INDEXES:
        indexes["thread"] = _THREAD_INDEXES[space]
    return [
        f"CREATE INDEX IF NOT EXISTS {space.name}_{index} ON {schema}.{space.name} ({columns});"
        for index, columns in indexes.items()
    ]


def newest_table(schema: str) -> str:
    """The table that is created last: if it exists, all do."""
    return f"{quote_name(schema)}.{CHANGES}"


def _policy(schema: str, table: str) -> str:
    # FORCE, so that it applies also to the owner of the tables, as whom most applications connect. A connection on
    # which an earlier transaction set the tenant reports an empty one: it sees nothing, like one that never had any.
    return (
        f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;\n"
        f"DROP POLICY IF EXISTS tenant ON {schema}.{table};\n"
        f"CREATE POLICY tenant ON {schema}.{table} "
        "USING (tenant = nullif(current_setting('holdfast.tenant', true), ''));"
    )


def _grants(schema: str, role: str) -> str:
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {role};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n"
        f"REVOKE INSERT, UPDATE, DELETE ON {schema}.version FROM {role};"
    )
