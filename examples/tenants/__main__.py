"""Customers of one service in one PostgreSQL database, kept apart by its row-level security.

    export POSTGRES_URL=postgresql://user:password@host/database
    python -m examples.tenants

It prints what each customer's store has, what the application's role sees with SQL of its own, and what a quota
refuses. The user of POSTGRES_URL must be able to create roles.
"""

from __future__ import annotations

import os
import secrets
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

import holdfast
from holdfast.backends.postgres import setup
from holdfast.errors import HoldfastError

SCHEMA = "example_tenants"


def main() -> None:
    url = os.environ["POSTGRES_URL"]
    role, password = f"example_{secrets.token_hex(4)}", secrets.token_hex(16)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(password)))
    setup(url, schema=SCHEMA, rls=True, role=role)
    parts = urlsplit(url)
    app = parts._replace(netloc=f"{role}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
    try:
        use(app)
    finally:
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(SCHEMA)))
            owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def use(app: str) -> None:
    """Work as two customers, with the role of the application."""
    for tenant in ("acme", "globex"):
        with holdfast.open(app, schema=SCHEMA, tenant=tenant) as store:
            store.thread("chat-1").put({"messages": [f"hello from {tenant}"]})
    for tenant in ("acme", "globex"):
        with holdfast.open(app, schema=SCHEMA, tenant=tenant) as store:
            print(
                f"{tenant}: {[each.thread for each in store.threads()]}",
                *store.thread("chat-1").get().state["messages"],
            )
    with psycopg.connect(app) as connection:
        view = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(SCHEMA, "threads"))
        (count,) = connection.execute(view).fetchone() or (None,)
        print("threads that a query without a tenant sees:", count)
    try:
        holdfast.open(app, schema=SCHEMA)
    except HoldfastError as error:
        print("a store without a tenant:", type(error).__name__)
    with holdfast.open(app, schema=SCHEMA, tenant="acme") as store:
        store.maintenance.set_quota(threads=1)
        try:
            store.thread("chat-2").put({"messages": []})
        except HoldfastError as error:
            print("the second thread of acme:", type(error).__name__)


if __name__ == "__main__":
    main()
