"""`holdfast mcp`: a store for coding agents and assistants."""

from __future__ import annotations

import signal
import sys

import click

from holdfast._lazy import missing_extra
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.scope_args import as_option


@command("mcp")
@as_option
@click.option("--write", is_flag=True, help="Offer tools that change threads, each with a confirmation.")
@click.option("--http", "port", type=click.IntRange(1, 65535), metavar="PORT", help="Serve HTTP on 127.0.0.1.")
def mcp(session: CliContext, write: bool, port: int | None) -> None:
    """Serve the store to assistants over the Model Context Protocol: by stdin and stdout, or by HTTP.

    It is read-only without --write, and acts as the identity of --as, if one is given. Over HTTP, every program of this
    machine can use it: prefer stdin and stdout.

    holdfast mcp --store agents.db
    holdfast mcp --store agents.db --as user:alice --write
    """
    try:
        from holdfast.interfaces.mcp.tools import build_server
    except ImportError as error:
        raise missing_extra("mcp", error) from error
    store = session.open_as(write=write)
    if port is None:
        build_server(store, write=write).run("stdio")
    else:
        session.note(f"http://127.0.0.1:{port}/mcp serves the store. Press Ctrl-C to stop.")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the store is closed: the audit has all reads
        build_server(store, write=write, host="127.0.0.1", port=port).run("streamable-http")
