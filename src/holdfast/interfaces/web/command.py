"""`holdfast ui` and `holdfast serve`: a store in the browser, and for programs on other machines."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import click

from holdfast._lazy import missing_extra
from holdfast.errors import ConfigError, InvalidError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.prune import SizeType
from holdfast.interfaces.cli.runs import find_target, importable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from starlette.routing import BaseRoute

    from holdfast.interfaces.http.app import Server
    from holdfast.store.store import Store

_LOOPBACK = "127.0.0.1"
_LOOPBACKS = (_LOOPBACK, "::1", "localhost")
"""The addresses to which names below `localhost` lead."""

_PORT = 8765
_ORIGIN = re.compile(r"https?://[a-z0-9.\-\[\]:]+")
"""The origin of a page, as browsers send it: without a path, in lower case."""
_WEAKER = (
    f"browsers use {_LOOPBACK}: they send the cookie of their session to every program that serves a port of this"
    " machine, and whoever runs one can read the store with it, as long as the session lasts"
)


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--max-body",
            type=SizeType(),
            default="16MiB",
            show_default=True,
            metavar="SIZE",
            help="The largest request, such as a state that a program saves.",
        ),
        click.option("--hooks", default="", metavar="MODULE:FUNCTION", help="Replay calls of hooks with these."),
        click.option("--grafana", default="", metavar="URL", help="Link to these dashboards from the page of metrics."),
        click.option("--allowed-host", "names", multiple=True, metavar="NAME", help="A further name of the server."),
        click.option(
            "--plain-loopback",
            "plain",
            is_flag=True,
            help="Let browsers use 127.0.0.1, where names below localhost do not lead to this machine. This is weaker.",
        ),
        click.option("--write", is_flag=True, help="Allow changes; otherwise the store is only read."),
        click.option("--port", type=click.IntRange(0, 65535), default=_PORT, show_default=True, help="0 for any."),
        click.option("--host", default=_LOOPBACK, show_default=True, help="The address to listen on."),
        click.argument("location", metavar="[STORE]", required=False),
    ):
        function = option(function)
    return function


@command("ui")
@_options
@click.option("--graph", default="", metavar="FILE.py:NAME", help="Replay recorded threads with this graph.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
def ui(session: CliContext, location: str | None, write: bool, no_browser: bool, **settings: Any) -> None:
    """Look at a store in the browser.

    Opening it changes no byte of the store, unless --write allows changes. The browser signs in with a code that works
    once, and for a minute; the terminal shows it, too, and a new one whenever you press Enter. With --write, recorded
    runs and calls of hooks can be replayed with the code that --graph and --hooks name: each in a process of its own,
    without network and access to the store. A worker in this process does the runs of that graph.

    holdfast ui agents.db
    holdfast ui agents.db --write --port 0
    holdfast ui agents.db --write --graph app.py:graph
    holdfast ui agents.db --write --graph shop.agent:graph --hooks shop.hooks:register
    """
    opened = _open(session, location, write=write, record=False)
    browser = not no_browser and not session.json
    graph = settings["graph"] = settings["graph"] and importable(settings["graph"])
    with _worker(session, opened, _graph_at(opened, graph)) if graph and write else nullcontext():
        _serve(session, opened, write=write, start_token=True, browser=browser, **settings)


@command("serve")
@_options
@click.option(
    "--graph",
    "graphs",
    multiple=True,
    metavar="[NAME=]FILE.py:NAME",
    help="Serve this graph, or those of a langgraph.json, to LangGraph's clients; the first replays recorded threads.",
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="How many runs are done at a time."
)
@click.option("--no-start-token", is_flag=True, help="Accept only tokens of `holdfast token issue`.")
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin, such as https://shop.example, use the server with a token.",
)
@click.option(
    "--private-webhooks", is_flag=True, help="Let runs call webhooks on this machine and in private networks."
)
def serve(
    session: CliContext,
    location: str | None,
    write: bool,
    no_start_token: bool,
    private_webhooks: bool,
    concurrency: int,
    graphs: tuple[str, ...],
    **settings: Any,
) -> None:
    """Serve a store over HTTP, to programs and to browsers.

    Whoever uses it needs a token: that of the start, in a file that only you can read, or one of `holdfast token
    issue`. Reads of identities are recorded in the audit. For another address than this machine's, put a proxy with TLS
    before it. With --graph, LangGraph's own clients (langgraph-sdk, RemoteGraph) use it, with a token as their API key;
    with --write, a worker in this process does their runs, also those by the clock, and calls their webhooks.

    holdfast serve agents.db
    holdfast serve agents.db --write --graph support=app.py:graph
    holdfast serve agents.db --write --graph langgraph.json
    holdfast serve agents.db --host 0.0.0.0 --allowed-host agents.internal --no-start-token
    """
    opened = _open(session, location, write=write, record=True)
    if not graphs:
        _serve(session, opened, write=write, start_token=not no_start_token, graph="", **settings)
        return
    from holdfast.interfaces.langgraph_server.background import client_work
    from holdfast.interfaces.langgraph_server.graphs import load_graphs, places_in

    places = [(name, place, importable(place)) for name, place in places_in(graphs)]
    served = load_graphs(opened, [(name, place, find_target(place)) for name, place, _ in places])
    settings |= {"graph": places[0][2], "private_webhooks": private_webhooks}
    with ExitStack() as stack:
        if write:
            session.note(f"A worker does runs of {', '.join(served)}.")
            stack.enter_context(client_work(opened, served, private_webhooks, concurrency))
        _serve(session, opened, served, write=write, start_token=not no_start_token, **settings)


def _graph_at(store: Store, place: str) -> Mapping[str, Any]:
    """Return the graph or workflow that was named, by its name."""
    from holdfast.agents.runs.steps import Workflow
    from holdfast.interfaces.langgraph.replayer import load_graph
    from holdfast.interfaces.langgraph.saver import HoldfastSaver

    found = find_target(place)
    target = found if isinstance(found, Workflow) else load_graph(place, found, HoldfastSaver(store))
    return {str(target.name): target}


def _worker(session: CliContext, store: Store, targets: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Return a worker for graphs and workflows."""
    worker = store.worker(**targets)
    session.note(f"A worker does runs of {', '.join(worker.names)}.")
    return worker


def _open(session: CliContext, location: str | None, *, write: bool, record: bool) -> Store:
    if location is not None:
        if session.store_name is not None:
            raise InvalidError("the store was given twice", hint="Give it as an argument, or with --store")
        session.store_name = location
    if write:
        return session.open(write=True)
    return session.open_to_record() if record else session.open()


def _serve(
    session: CliContext,
    store: Store,
    graphs: Mapping[str, Any] | None = None,
    *,
    host: str,
    port: int,
    write: bool,
    names: tuple[str, ...],
    plain: bool,
    start_token: bool,
    browser: bool = False,
    **further: Any,
) -> None:
    try:
        from holdfast.interfaces.http.app import build_app
        from holdfast.interfaces.http.authentication import Authenticator
        from holdfast.interfaces.http.protection import is_loopback
        from holdfast.interfaces.http.server import HttpServer, address_of, bind, bind_loopback
        from holdfast.interfaces.http.service import Service, ServiceOptions
        from holdfast.interfaces.web.pages import page_routes
        from holdfast.interfaces.web.sign_in_files import loopback_name, token_file
        from holdfast.interfaces.web.terminal_keys import TerminalKeys
    except ImportError as error:
        raise missing_extra("ui", error) from error
    if not is_loopback(host) and not names:
        raise ConfigError(
            "a server that other machines reach needs the names that they reach it by",
            where=f"--host {host}",
            hint="Give --allowed-host NAME, as browsers and programs write it",
        )
    for each in further.get("origins", ()):
        if not _ORIGIN.fullmatch(each):
            hint = "Write it as browsers do: https://shop.example, or http://localhost:3000"
            raise InvalidError(f"{each[:80]!r} is not the origin of a site", where="--allow-origin", hint=hint)
    if further["grafana"] and not further["grafana"].startswith(("https://", "http://")):
        raise InvalidError("the address of Grafana must begin with https:// or http://", where="--grafana")
    own = tuple(name.lower() for name in names)
    local = is_loopback(host) and not plain
    if local and host not in _LOOPBACKS:
        raise ConfigError(
            "names below localhost do not lead to this address",
            where=f"--host {host}",
            hint=f"Use {_LOOPBACK}, or --plain-loopback",
        )
    if local:
        name = loopback_name(store)
    elif is_loopback(host):
        name = f"[{host}]" if ":" in host else host
    else:
        name = own[0]  # 0.0.0.0 is no name that a browser can use
    cookie_hosts = (name, *(each for each in own if not is_loopback(each)))
    options = ServiceOptions(write=write, hosts=(*ServiceOptions().hosts, *own), cookie_hosts=cookie_hosts, **further)
    authenticator = Authenticator(store, start_token=start_token)

    def routes(server: Server) -> list[BaseRoute]:
        if graphs is None:
            return list(page_routes(server))
        from holdfast.interfaces.langgraph_server.app import graph_routes

        return [*graph_routes(server, graphs), *page_routes(server)]

    app = build_app(Service(store, options), authenticator, routes)
    with ExitStack() as stack:
        bound = [stack.enter_context(each) for each in (bind_loopback(port) if local else [bind(host, port)])]
        number = bound[0].getsockname()[1]
        pages = f"http://{name}:{number}/"
        url = f"http://{address_of(bound[0])}/" if is_loopback(host) else pages
        file: Path | None = None
        if start_token:
            file = stack.enter_context(token_file(number, authenticator.start_token))
        authenticator.forget_start_token()
        terminal = start_token and sys.stdin.isatty() and sys.stdout.isatty()

        def report() -> None:
            session.report(pages, {"url": url, "pages": pages, "token_file": file, "writable": write})
            session.note(f"Programs use {url}" + (f" with the token in {file}." if file is not None else "."))
            session.note("Press Ctrl-C to stop." if write else "The store is only read. Press Ctrl-C to stop.")
            if plain and is_loopback(host):
                session.warn(_WEAKER)
            if terminal:
                _show_code(session, authenticator.issue_code())
                TerminalKeys(lambda: _show_code(session, authenticator.issue_code())).follow()
            session.out.flush()
            if browser:
                _open_browser(session, pages, authenticator.issue_code(), stack)

        HttpServer(app, options.max_streams + 500, report).run_bound(*bound)


def _show_code(session: CliContext, code: str) -> None:
    session.out.line(f"Code: {code}  (works once, for a minute; press Enter for another)")
    session.out.flush()


def _open_browser(session: CliContext, url: str, code: str, stack: ExitStack) -> None:
    """Open the browser on a file that signs it in, and remove the file when its code works no longer."""
    import asyncio  # slow to import

    from holdfast.interfaces.http.authentication import CODE_SECONDS
    from holdfast.interfaces.web.sign_in_files import SignInFile

    try:
        file = SignInFile(url, code)
    except OSError as error:
        session.warn(f"the browser could not be opened: {error}")
        return
    stack.callback(file.remove)
    asyncio.get_running_loop().call_later(CODE_SECONDS, file.remove)
    click.launch(str(file.path))
