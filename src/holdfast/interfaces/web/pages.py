"""The pages of the web interface. Each is an address that can be reloaded and shared, and complete without a script.

Scripts fetch the same addresses with the header `X-Fragment`, and get the part of the page that changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from inspect import signature
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import DeniedError, HoldfastError, InvalidError, NotFoundError, TooLargeError
from holdfast.interfaces.http.app import Server, reporting
from holdfast.interfaces.http.authentication import cookie_name, cookie_value
from holdfast.interfaces.http.models import Problem
from holdfast.interfaces.http.problems import internal_problem, to_problem
from holdfast.interfaces.http.protection import FILE_ORIGIN, POLICY, SIGN_IN
from holdfast.interfaces.http.service import Call, Caller
from holdfast.interfaces.http.thread_reads import search as search_threads
from holdfast.interfaces.web import (
    access_page,
    agent_page,
    agent_step_page,
    bulk_page,
    compare_page,
    hook_page,
    operations_page,
    recording_page,
    run_page,
    session_page,
    state_page,
    thread_page,
    timeline_page,
)
from holdfast.interfaces.web.action_plan import ActionForm
from holdfast.interfaces.web.actions import action_values
from holdfast.interfaces.web.artifact_preview import FRAMES, Image, read_image
from holdfast.interfaces.web.download import Download
from holdfast.interfaces.web.finder import find_values
from holdfast.interfaces.web.metrics_page import MetricsHistory, metrics_values
from holdfast.interfaces.web.overview import overview_values, thread_list_values
from holdfast.interfaces.web.page_renderer import render, render_main, segment, static_files
from holdfast.interfaces.web.step_address import step_address
from holdfast.interfaces.web.usage_page import usage_values

THEMES = ("auto", "light", "dark")
_MAX_FORM = 1 << 20
_HINT = "Open the address that the server printed"
_MAX_ADDRESS = 8000
_SEARCHED, _SEARCHED_FURTHER = 250, 5000
"""How many checkpoints a search without an index reads at once, and how many where it goes on."""

_PARTS = {
    "step": "parts/step.html",
    "steps-before": "parts/steps.html",
    "steps-after": "parts/steps.html",
    "history": "parts/history.html",
    "rows": "parts/rows.html",
    "value": "parts/value.html",
    "inspect": "parts/inspect.html",
    "table": "parts/thread_table.html",
    "action": "parts/action.html",
    "inline": "parts/inline.html",
    "agent-action": "parts/agent_action.html",
    "plan": "parts/plan.html",
    "find": "parts/find.html",
}
"""The parts of pages that scripts fetch."""

_RAIL = (
    ("/", "Overview", False),
    ("/threads", "Threads", False),
    ("/state", "State", False),
    ("/agents", "Agents", False),
    ("/sessions", "Sessions", False),
    ("/timeline", "Timeline", False),
    ("/usage", "Usage", False),
    ("/hooks", "Hooks", True),
    ("/schemas", "Schemas", True),
    ("/backups", "Backups", True),
    ("/runs", "Runs", True),
    ("/jobs", "Jobs", True),
    ("/access", "Access", True),
    ("/audit", "Audit", True),
    ("/verify", "Verify", True),
    ("/metrics/plots", "Metrics", True),
)
"""The views at the left: address, name, and whether only the store's owner has them."""


def rail(caller: Caller, *, empty: bool = False) -> list[tuple[str, str]]:
    """Return the views that a caller has: of an empty store, the overview, which says how to begin, and access."""
    return [
        (address, name)
        for address, name, of_owner in _RAIL
        if not (of_owner and caller.identity) and (not empty or address in _OF_EMPTY)
    ]


_OF_EMPTY = ("/", "/access")


Values = Callable[..., dict[str, Any] | Download | Image]
"""Returns the values in the template of a page, or a file."""


class Pages:
    """Renders pages for whoever is signed in."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._filled = False

    def _is_empty(self) -> bool:
        """Whether the store has nothing yet. Once it had something, nobody asks again."""
        if not self._filled:
            store = self._server.service.store
            reads = (store.threads, store.agents.list, store.scopes, store.artifacts.list, store.runs.list)
            try:
                self._filled = any(list(read(limit=1)) for read in reads) or len(store.jobs.list()) > 1
            except HoldfastError:  # what is damaged is there
                self._filled = True
        return not self._filled

    def page(self, template: str, values: Values) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page. One with a form gets it again when it is filled in, to show what it would
        do."""
        parameters = signature(values).parameters

        async def respond(request: Request) -> Response:
            caller = Caller()
            given: dict[str, Any] = {"params": request.query_params, "want": request.headers.get("x-fragment", "")}
            if "form" in parameters:
                given["form"] = ActionForm(await _form_fields(request), sent=request.method == "POST")
            named = {name: value for name, value in given.items() if name in parameters}
            view = partial(values, **named)
            try:
                caller = await self._server.authenticate(request)
                return await self._server.work(partial(self._render, template, view, caller, request))  # type: ignore[no-any-return]
            except Redirection as target:
                return RedirectResponse(target.address, 303)
            except HoldfastError as error:
                return self._failure(request, error, caller)
            except Exception:  # noqa: BLE001 - reported, not swallowed
                thread_page.log.exception("a page failed: %s", request.url.path)
                return self._failure(request, None, caller)

        return reporting(respond) if "form" in parameters else respond

    def _render(
        self, template: str, view: partial[dict[str, Any] | Download | Image], caller: Caller, request: Request
    ) -> Response:
        form = view.keywords.get("form")
        code = form.text("code") if form is not None and form.sent else ""
        call = Call(self._server.service, caller, confirm=partial(self._server.authenticator.confirm, caller, code))
        if form is not None and form.sent:
            self._server.authenticator.check_csrf(caller, form.text("csrf"))
        want = request.headers.get("x-fragment", "")
        since = self._server.hub.token(caller)  # live changes are those since
        values = view(call, *map(unquote, request.path_params.values()))
        if isinstance(values, Download | Image):
            return values.response()
        common = self._common(request, call) | {"live_since": since}
        if want == "main":
            return _html(render_main(f"{template}.html", **common, **values))
        return _html(
            render(_PARTS.get(want, f"{template}.html"), **common, **values), framed=values.get("framed", False)
        )

    def _common(self, request: Request, call: Call) -> dict[str, Any]:
        info = call.info()
        return {
            "theme": _theme(request),
            "info": info,
            "place": info.store or f"{request.url.scheme}://{request.url.netloc}",
            "csrf": self._server.authenticator.csrf_token(call.caller),
            "address": str(request.url.path),
            "signed_in": True,
            "rail": rail(call.caller, empty=self._is_empty()),
            "narrow": request.cookies.get("holdfast_rail") == "off",
        }

    def _failure(self, request: Request, error: HoldfastError | None, caller: Caller) -> Response:
        problem = internal_problem() if error is None else to_problem(error)
        if problem.status == 401 and "x-fragment" not in request.headers:
            wanted = _wanted_page(request)
            # A click on a link of another site does not send the cookie; a click on one of ours does.
            clicked = request.headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
            return _html(self._sign_in_page(request, wanted, template="return.html" if clicked else "login.html"), 401)
        values: dict[str, Any] = {"theme": _theme(request), "problem": problem, "address": request.url.path}
        signed_in = problem.status != 401 and bool(caller.session)
        info = Call(self._server.service, caller).info() if signed_in else None
        csrf = self._server.authenticator.csrf_token(caller)
        template = "parts/problem.html" if "x-fragment" in request.headers else "error.html"
        values |= {"signed_in": signed_in, "info": info, "csrf": csrf, "rail": rail(caller)}
        return _html(render(template, **values), problem.status)

    def _sign_in_page(
        self, request: Request, wanted: str, *, problem: Problem | None = None, template: str = "login.html"
    ) -> str:
        """Return the page to sign in, which leads to the page that was asked for."""
        values: dict[str, Any] = {"theme": _theme(request), "problem": problem, "wanted": wanted}
        values["possible"] = self._server.takes_cookies(request)
        return render(template, **values, signed_in=False, address="", info=None)

    async def sign_in(self, request: Request) -> Response:
        """Exchange a code, or a token, for a cookie. A file, or a page of another site, can only send a code."""
        if not self._server.takes_cookies(request):
            host = request.headers.get("host", "")
            raise DeniedError("browsers do not sign in under this name", where=host[:80], hint=_HINT, code="wrong-host")
        fields = await _form_fields(request)
        code, wanted = (fields.get(name, [""])[0] for name in ("code", "next"))
        wanted = local_address(wanted)
        token = request.headers.get("origin") != FILE_ORIGIN
        sign_in = partial(self._server.authenticator.sign_in, code.strip(), token=token)
        try:
            value = await self._server.checked(request, sign_in)
        except HoldfastError as error:
            problem = to_problem(error)
            return _html(self._sign_in_page(request, wanted, problem=problem), problem.status)
        # No redirect: the cookie would not be sent along on what another site, or a file, has started.
        response = _html(self._sign_in_page(request, wanted, template="return.html"))
        secure = request.url.scheme == "https"
        name = cookie_name(request.headers.get("host", ""))
        response.set_cookie(name, value, httponly=True, samesite="strict", path="/", secure=secure)
        return response

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        host = request.headers.get("host", "")
        value = cookie_value(request.headers.get("cookie", ""), host)
        try:
            caller = await self._server.authenticate(request)
            self._server.authenticator.check_csrf(caller, await _form_value(request, "csrf"))
        except DeniedError as error:
            return self._failure(request, error, Caller())
        self._server.authenticator.sign_out(value)
        response = RedirectResponse("/", 303)
        response.delete_cookie(cookie_name(host), path="/", httponly=True, samesite="strict")
        return response


def local_address(text: str) -> str:
    """Return the address of a page of this server; empty if a text is another, or could be read as another."""
    plain = text.isascii() and text.isprintable() and "\\" not in text and len(text) <= _MAX_ADDRESS
    if not plain or not text.startswith("/") or text.startswith(("//", SIGN_IN, "/logout")):
        return ""
    return text


def _wanted_page(request: Request) -> str:
    if request.method != "GET":
        return ""
    query = f"?{request.url.query}" if request.url.query else ""
    return local_address(request.url.path + query)


class Redirection(Exception):
    """The page is at another address."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


async def _form_fields(request: Request) -> dict[str, list[str]]:
    """Return the fields of the form that was sent, or of the query of an address that fills it in."""
    if request.method == "GET":
        return parse_qs(request.url.query, keep_blank_values=True)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM:  # it is read before it is known who sends it
            raise TooLargeError(f"a form has at most {_MAX_FORM:,} bytes", hint="Use the command that the page shows")
    return parse_qs(body.decode("ascii", "replace"), keep_blank_values=True)


async def _form_value(request: Request, name: str) -> str:
    """Return a field of the form that was sent; empty if there is none."""
    return (await _form_fields(request)).get(name, [""])[0]


def _theme(request: Request) -> str:
    chosen = request.cookies.get("holdfast_theme", "auto")
    return chosen if chosen in THEMES else "auto"


def _html(body: str, status: int = 200, *, framed: bool = False) -> Response:
    headers = {"cache-control": "no-store", "vary": "x-fragment, cookie"}
    if framed:
        headers["content-security-policy"] = f"{POLICY}; {FRAMES}"
    return Response(body, status, headers, "text/html; charset=utf-8")


async def _static(request: Request) -> Response:
    found = static_files().get(request.path_params["name"])
    if found is None:
        return Response(status_code=404)
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(found.content, headers=headers, media_type=found.media)


# Views ------------------------------------------------------------------------------------------------------------


def _search(call: Call, params: Mapping[str, str], want: str) -> dict[str, Any]:
    query = params.get("q", "").strip()
    if want == "find":
        return {"found": find_values(call, query, rail(call.caller))}
    values: dict[str, Any] = {"q": query, "page": None, "problem": None}
    if query:
        try:
            cursor = params.get("cursor") or None
            scan_limit = _SEARCHED_FURTHER if cursor else _SEARCHED
            values["page"] = search_threads(call, query=query, cursor=cursor, scan_limit=scan_limit)
        except InvalidError as error:
            values["problem"] = to_problem(error)
    return values


def _go(call: Call, name: str, params: Mapping[str, str]) -> dict[str, Any]:
    """Go to a step by its number, by a time of the reader's clock, or by any revision."""
    raise Redirection(step_address(call, name, params))


def _resolve(call: Call, id: str, form: ActionForm) -> dict[str, Any]:
    agent_page.resolve_agent(call, id, form.text("how"), form.text("typed"))
    raise Redirection(f"/agents/{segment(id)}")


def _change_job(call: Call, name: str, change: str, form: ActionForm) -> dict[str, Any]:  # noqa: ARG001
    operations_page.change_job(call, name, change)
    raise Redirection(f"/jobs/{segment(name)}")


def _access_form(call: Call, action: str, form: ActionForm) -> dict[str, Any]:
    return _leave(access_page.access_form_values(call, action, form))


def _hook_event(call: Call, id: str, number: str, params: Mapping[str, str]) -> dict[str, Any]:
    raise Redirection(timeline_page.find_hook_call(call, id, number, params))


def _schedule_job(call: Call, name: str, form: ActionForm) -> dict[str, Any]:
    return _leave(operations_page.schedule_values(call, name, form))


def _limit_runs(call: Call, form: ActionForm) -> dict[str, Any]:
    return _leave(run_page.limit_values(call, form))


def _bulk(call: Call, action: str, form: ActionForm) -> dict[str, Any]:
    return _leave(bulk_page.bulk_values(call, action, form))


def _leave(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a form, or go back to its page if it is done, and there is nothing to show."""
    if values["filled"].done and not values["secret"] and values["report"] is None:
        raise Redirection(values["form"].back)
    return values


def _change_run(call: Call, id: str, change: str, form: ActionForm) -> dict[str, Any]:  # noqa: ARG001
    run_page.change_run(call, id, change)
    raise Redirection(f"/runs/{segment(id)}")


def _change_undelivered(call: Call, reference: str, change: str, form: ActionForm) -> dict[str, Any]:  # noqa: ARG001
    hook_page.change_undelivered(call, reference, change)
    raise Redirection("/hooks/undelivered")


def _nothing(call: Call, rest: str) -> dict[str, Any]:  # noqa: ARG001
    raise NotFoundError("there is no page at this address", hint="Go to the overview")


PAGES: tuple[tuple[str, str, Values], ...] = (
    ("/", "overview", overview_values),
    ("/threads", "threads", thread_list_values),
    ("/bulk/{action}", "operation", _bulk),
    ("/bulk/{action}/file", "", bulk_page.export_threads),
    ("/search", "search", _search),
    ("/threads/{thread}", "thread", thread_page.step_values),
    ("/go/{thread}", "", _go),
    ("/compare/{thread}", "compare", compare_page.compare_values),
    ("/threads/{thread}/{at}", "thread", thread_page.step_values),
    ("/threads/{thread}/{at}/value", "value", thread_page.value_values),
    ("/threads/{thread}/{at}/inspect", "inspect", thread_page.inspect_values),
    ("/threads/{thread}/{at}/actions/{action}", "action", action_values),
    ("/threads/{thread}/{at}/recording", "recording", recording_page.recording_values),
    ("/state", "state", state_page.scopes_values),
    ("/state/{scope}", "state", state_page.scope_values),
    ("/state/{scope}/{key}", "state", state_page.key_values),
    ("/agents", "agents", agent_page.agent_list_values),
    ("/agents/{id}", "agent", agent_page.agent_values),
    ("/agents/{id}/resolve", "", _resolve),
    ("/agents/{id}/steps/{key}/resolve", "agent_action", agent_step_page.resolve_step_values),
    ("/agents/{id}/timers/{name}/cancel", "agent_action", agent_step_page.cancel_timer_values),
    ("/agents/{id}/signal", "agent_action", agent_step_page.send_signal_values),
    ("/sessions", "sessions", session_page.session_list_values),
    ("/sessions/{id}", "session", session_page.session_values),
    ("/artifacts", "artifacts", session_page.artifact_list_values),
    ("/artifacts/{id}", "artifact", session_page.artifact_values),
    ("/artifacts/{id}/image", "", read_image),
    ("/schemas", "schemas", operations_page.schema_list_values),
    ("/schemas/{reference}", "schema", operations_page.schema_values),
    ("/backups", "backups", operations_page.backup_values),
    ("/jobs", "jobs", operations_page.job_values),
    ("/jobs/{name}", "jobs", operations_page.job_values),
    ("/jobs/{name}/schedule", "operation", _schedule_job),
    ("/jobs/{name}/{change}", "", _change_job),
    ("/runs", "runs", run_page.run_list_values),
    ("/runs/limit", "operation", _limit_runs),
    ("/runs/{id}", "runs", run_page.run_values),
    ("/runs/{id}/{change}", "", _change_run),
    ("/timeline", "timeline", timeline_page.timeline_values),
    ("/timeline/{id}", "event", timeline_page.event_values),
    ("/hooks", "hooks", hook_page.hook_list_values),
    ("/hooks/statistics", "hook_statistics", hook_page.hook_statistics_values),
    ("/hooks/undelivered", "hook_undelivered", hook_page.undelivered_values),
    ("/hooks/undelivered/{reference}/{change}", "", _change_undelivered),
    ("/hooks/events/{id}/{number}", "", _hook_event),
    ("/hooks/calls/{reference}", "hook_call", hook_page.hook_call_values),
    ("/usage", "usage", usage_values),
    ("/access", "access", access_page.access_values),
    ("/access/persons", "person", access_page.person_values),
    ("/access/persons/{subject}/export", "", access_page.export_person),
    ("/access/identities/{who}", "identity", access_page.identity_values),
    ("/access/actions/{action}", "operation", _access_form),
    ("/access/{tab}", "access", access_page.access_values),
    ("/audit", "audit", operations_page.audit_values),
    ("/verify", "verify", operations_page.verify_values),
)
"""The pages: the address, the template, and the function that returns its values. The function is called with the
parts of the address, and as it has them: the `params` of the query, the part that a script `want`s, and the `form` that
is sent to the page. A page without a template only changes something, and leads to another."""


def page_routes(server: Server) -> Iterable[BaseRoute]:
    """Return the routes of the pages."""
    pages = Pages(server)
    metrics: Values = partial(metrics_values, history=MetricsHistory())
    nothing = pages.page("", _nothing)

    async def no_page(request: Request) -> Response:
        if request.url.path.startswith("/api/"):
            raise HTTPException(404)
        return await nothing(request)

    return [
        Route(SIGN_IN, reporting(pages.sign_in), methods=["POST"]),
        Route("/logout", reporting(pages.sign_out), methods=["POST"]),
        Route("/static/{version}/{name}", _static),
        *(_route(pages, *page) for page in PAGES),
        _route(pages, "/metrics/plots", "metrics", metrics),
        Route("/{rest:path}", no_page),
    ]


def _route(pages: Pages, path: str, template: str, values: Values) -> Route:
    has_form = "form" in signature(values).parameters
    methods = ["GET"] * bool(template or not has_form) + ["POST"] * has_form
    return Route(path, pages.page(template, values), methods=methods)
