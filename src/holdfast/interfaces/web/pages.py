"""The pages of the web interface. Each is an address that can be reloaded and shared, and complete without a script.

Scripts fetch the same addresses with the header `X-Fragment`, and get the part of the page that changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
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
from holdfast.interfaces.http.protection import FILE_ORIGIN, SIGN_IN
from holdfast.interfaces.http.service import Call, Caller
from holdfast.interfaces.http.thread_reads import search as search_threads
from holdfast.interfaces.web import (
    agent_page,
    agent_step_page,
    hook_page,
    operations_page,
    recording_page,
    session_page,
    state_page,
    thread_page,
    timeline_page,
)
from holdfast.interfaces.web.action_plan import ActionForm
from holdfast.interfaces.web.actions import action_values
from holdfast.interfaces.web.finder import find_values
from holdfast.interfaces.web.metrics_page import MetricsHistory, metrics_values
from holdfast.interfaces.web.overview import overview_values, thread_list_values
from holdfast.interfaces.web.page_renderer import query_text, render, render_main, segment, static_files

THEMES = ("auto", "light", "dark")
_MAX_FORM = 1 << 20
_HINT = "Open the address that the server printed"
_MAX_ADDRESS = 8000
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
    ("/hooks", "Hooks", True),
    ("/schemas", "Schemas", True),
    ("/backups", "Backups", True),
    ("/jobs", "Jobs", True),
    ("/audit", "Audit", True),
    ("/verify", "Verify", True),
    ("/metrics/plots", "Metrics", True),
)
"""The views at the left: address, name, and whether only the store's owner has them."""


def rail(caller: Caller) -> list[tuple[str, str]]:
    """Return the views that a caller has."""
    return [(address, name) for address, name, of_owner in _RAIL if not (of_owner and caller.identity)]


View = Callable[[Call, Request], tuple[str, dict[str, Any]]]
"""What a page shows: its template, and the values in it."""

FormView = Callable[[Call, Request, ActionForm], tuple[str, dict[str, Any]]]
"""What a page with a form shows, as it is filled in."""


class Pages:
    """Renders pages for whoever is signed in."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def page(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page."""

        async def respond(request: Request) -> Response:
            caller = Caller()
            try:
                caller = await self._server.authenticate(request)
                return await self._server.work(partial(self._render, view, caller, request))  # type: ignore[no-any-return]
            except Redirection as target:
                return RedirectResponse(target.address, 303)
            except HoldfastError as error:
                return self._failure(request, error, caller)
            except Exception:  # noqa: BLE001 - reported, not swallowed
                thread_page.log.exception("a page failed: %s", request.url.path)
                return self._failure(request, None, caller)

        return respond

    def form_page(self, view: FormView) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page with a form that is sent to it again, to show what it would do."""

        async def respond(request: Request) -> Response:
            form = ActionForm(await _form_fields(request))

            def show(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
                if request.method == "POST":
                    self._server.authenticator.check_csrf(call.caller, form.text("csrf"))
                return view(call, request, form)

            return await self.page(show)(request)

        return reporting(respond)

    def _render(self, view: View, caller: Caller, request: Request) -> Response:
        call = Call(self._server.service, caller)
        template, values = view(call, request)
        want = request.headers.get("x-fragment", "")
        common = self._common(request, call)
        if want == "main":
            return _html(render_main(template, **common, **values))
        return _html(render(_PARTS.get(want, template), **common, **values))

    def _common(self, request: Request, call: Call) -> dict[str, Any]:
        info = call.info()
        return {
            "theme": _theme(request),
            "info": info,
            "place": info.store or f"{request.url.scheme}://{request.url.netloc}",
            "csrf": self._server.authenticator.csrf_token(call.caller),
            "address": str(request.url.path),
            "signed_in": True,
            "rail": rail(call.caller),
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


def _html(body: str, status: int = 200) -> Response:
    headers = {"cache-control": "no-store", "vary": "x-fragment, cookie"}
    return Response(body, status, headers, "text/html; charset=utf-8")


async def _static(request: Request) -> Response:
    found = static_files().get(request.path_params["name"])
    if found is None:
        return Response(status_code=404)
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(found.content, headers=headers, media_type=found.media)


# Views ------------------------------------------------------------------------------------------------------------


def _overview(call: Call, request: Request) -> tuple[str, dict[str, Any]]:  # noqa: ARG001
    return "overview.html", overview_values(call)


def _threads(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "threads.html", thread_list_values(call, request.query_params)


def _search(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    query = request.query_params.get("q", "").strip()
    if _want(request) == "find":
        return "search.html", {"found": find_values(call, query, rail(call.caller))}
    values: dict[str, Any] = {"q": query, "page": None, "problem": None}
    if query:
        try:
            values["page"] = search_threads(call, query=query, cursor=request.query_params.get("cursor"))
        except InvalidError as error:
            values["problem"] = to_problem(error)
    return "search.html", values


def _thread(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "thread.html", thread_page.step_values(call, _name(request), "HEAD", request.query_params, _want(request))


def _step(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    name, at = _name(request), unquote(request.path_params["at"])
    return "thread.html", thread_page.step_values(call, name, at, request.query_params, _want(request))


def _go(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    """Go to a step by its number, or by any revision."""
    name, to = _name(request), request.query_params.get("to", "").strip() or "HEAD"
    branch = request.query_params.get("branch", "")
    if to.isdecimal():
        to = f"{branch}#{to}" if branch else f"#{to}"
    found = call.store.thread(name).resolve(to)
    tab = request.query_params.get("tab", "")
    raise Redirection(f"/threads/{segment(name)}/{segment(found.id)}{query_text(tab=tab)}")


def _value(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    name, at = _name(request), unquote(request.path_params["at"])
    return "value.html", thread_page.value_values(call, name, at, request.query_params)


def _inspect(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    name, at = _name(request), unquote(request.path_params["at"])
    return "inspect.html", thread_page.inspect_values(call, name, at, request.query_params)


def _scopes(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "state.html", state_page.scopes_values(call, request.query_params)


def _scope(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "state.html", state_page.scope_values(call, _part(request, "scope"), request.query_params)


def _key(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    scope, key = _part(request, "scope"), _part(request, "key")
    return "state.html", state_page.key_values(call, scope, key, request.query_params)


def _agents(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "agents.html", agent_page.agent_list_values(call, request.query_params)


def _agent(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "agent.html", agent_page.agent_values(call, _part(request, "id"), request.query_params)


def _resolve(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:
    id = _part(request, "id")
    agent_page.resolve_agent(call, id, form.text("how"), form.text("typed"))
    raise Redirection(f"/agents/{segment(id)}")


def _resolve_step(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:
    id, key = _part(request, "id"), _part(request, "key")
    return "agent_action.html", agent_step_page.resolve_step_values(call, id, key, form)


def _cancel_timer(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:
    id, name = _part(request, "id"), _part(request, "name")
    return "agent_action.html", agent_step_page.cancel_timer_values(call, id, name, form)


def _send_signal(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:
    return "agent_action.html", agent_step_page.send_signal_values(call, _part(request, "id"), form)


def _sessions(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "sessions.html", session_page.session_list_values(call, request.query_params)


def _session(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "session.html", session_page.session_values(call, _part(request, "id"))


def _artifacts(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "artifacts.html", session_page.artifact_list_values(call, request.query_params)


def _artifact(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "artifact.html", session_page.artifact_values(call, _part(request, "id"), request.query_params)


def _schemas(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "schemas.html", operations_page.schema_list_values(call, request.query_params)


def _schema(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "schema.html", operations_page.schema_values(call, _part(request, "reference"))


def _backups(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "backups.html", operations_page.backup_values(call, request.query_params)


def _jobs(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    name = _part(request, "name") if "name" in request.path_params else None
    return "jobs.html", operations_page.job_values(call, name)


def _change_job(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:  # noqa: ARG001
    name = _part(request, "name")
    operations_page.change_job(call, name, request.path_params["change"])
    raise Redirection(f"/jobs/{segment(name)}")


def _timeline(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "timeline.html", timeline_page.timeline_values(call, request.query_params)


def _event(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "event.html", timeline_page.event_values(call, _part(request, "id"))


def _hooks(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "hooks.html", hook_page.hook_list_values(call, request.query_params)


def _hook_statistics(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "hook_statistics.html", hook_page.hook_statistics_values(call, request.query_params)


def _undelivered(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "hook_undelivered.html", hook_page.undelivered_values(call, request.query_params)


def _change_undelivered(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:  # noqa: ARG001
    hook_page.change_undelivered(call, _part(request, "reference"), request.path_params["change"])
    raise Redirection("/hooks/undelivered")


def _hook_call(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:
    sent = form if request.method == "POST" else None
    return "hook_call.html", hook_page.hook_call_values(call, _part(request, "reference"), sent)


def _recording(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:
    name, at = _name(request), unquote(request.path_params["at"])
    sent = form if request.method == "POST" else None
    return "recording.html", recording_page.recording_values(call, name, at, request.query_params, sent)


def _audit(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "audit.html", operations_page.audit_values(call, request.query_params)


def _verify(call: Call, request: Request) -> tuple[str, dict[str, Any]]:
    return "verify.html", operations_page.verify_values(call, request.query_params)


def _action(call: Call, request: Request, form: ActionForm) -> tuple[str, dict[str, Any]]:
    at, action = unquote(request.path_params["at"]), request.path_params["action"]
    return "action.html", action_values(call, _name(request), at, action, form)


def _part(request: Request, name: str) -> str:
    return unquote(request.path_params[name])


def _name(request: Request) -> str:
    return _part(request, "thread")


def _want(request: Request) -> str:
    return request.headers.get("x-fragment", "")


def page_routes(server: Server) -> Iterable[BaseRoute]:
    """Return the routes of the pages."""
    pages = Pages(server)
    history = MetricsHistory()

    def metrics(call: Call, request: Request) -> tuple[str, dict[str, Any]]:  # noqa: ARG001
        return "metrics.html", metrics_values(call, history)

    async def nothing(request: Request) -> Response:
        if request.url.path.startswith("/api/"):
            raise HTTPException(404)

        def view(call: Call, request: Request) -> tuple[str, dict[str, Any]]:  # noqa: ARG001
            raise NotFoundError("there is no page at this address", hint="Go to the overview")

        return await pages.page(view)(request)

    return [
        Route(SIGN_IN, reporting(pages.sign_in), methods=["POST"]),
        Route("/logout", reporting(pages.sign_out), methods=["POST"]),
        Route("/static/{version}/{name}", _static),
        Route("/", pages.page(_overview)),
        Route("/threads", pages.page(_threads)),
        Route("/search", pages.page(_search)),
        Route("/threads/{thread}", pages.page(_thread)),
        Route("/go/{thread}", pages.page(_go)),
        Route("/threads/{thread}/{at}", pages.page(_step)),
        Route("/threads/{thread}/{at}/value", pages.page(_value)),
        Route("/threads/{thread}/{at}/inspect", pages.page(_inspect)),
        Route("/threads/{thread}/{at}/actions/{action}", pages.form_page(_action), methods=["GET", "POST"]),
        Route("/threads/{thread}/{at}/recording", pages.form_page(_recording), methods=["GET", "POST"]),
        Route("/state", pages.page(_scopes)),
        Route("/state/{scope}", pages.page(_scope)),
        Route("/state/{scope}/{key}", pages.page(_key)),
        Route("/agents", pages.page(_agents)),
        Route("/agents/{id}", pages.page(_agent)),
        Route("/agents/{id}/resolve", pages.form_page(_resolve), methods=["POST"]),
        Route("/agents/{id}/steps/{key}/resolve", pages.form_page(_resolve_step), methods=["GET", "POST"]),
        Route("/agents/{id}/timers/{name}/cancel", pages.form_page(_cancel_timer), methods=["GET", "POST"]),
        Route("/agents/{id}/signal", pages.form_page(_send_signal), methods=["GET", "POST"]),
        Route("/sessions", pages.page(_sessions)),
        Route("/sessions/{id}", pages.page(_session)),
        Route("/artifacts", pages.page(_artifacts)),
        Route("/artifacts/{id}", pages.page(_artifact)),
        Route("/schemas", pages.page(_schemas)),
        Route("/schemas/{reference}", pages.page(_schema)),
        Route("/backups", pages.page(_backups)),
        Route("/jobs", pages.page(_jobs)),
        Route("/jobs/{name}", pages.page(_jobs)),
        Route("/jobs/{name}/{change}", pages.form_page(_change_job), methods=["POST"]),
        Route("/timeline", pages.page(_timeline)),
        Route("/timeline/{id}", pages.page(_event)),
        Route("/hooks", pages.page(_hooks)),
        Route("/hooks/statistics", pages.page(_hook_statistics)),
        Route("/hooks/undelivered", pages.page(_undelivered)),
        Route("/hooks/undelivered/{reference}/{change}", pages.form_page(_change_undelivered), methods=["POST"]),
        Route("/hooks/calls/{reference}", pages.form_page(_hook_call), methods=["GET", "POST"]),
        Route("/audit", pages.page(_audit)),
        Route("/verify", pages.page(_verify)),
        Route("/metrics/plots", pages.page(metrics)),
        Route("/{rest:path}", nothing),
    ]
