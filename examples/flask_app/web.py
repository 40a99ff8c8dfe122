"""The web application: ``flask --app examples.flask_app.web run``."""

import os
from hmac import compare_digest

from flask import Flask, Response, abort, redirect, request, session, url_for
from werkzeug.wrappers import Response as Answer

from celery_redislock.web import application
from examples.flask_app.shop import app, sync_account

__all__ = ["site"]

PASSWORD = os.environ.get("STAFF_PASSWORD", "only-for-the-example")

site = Flask(__name__, static_folder=None)
site.secret_key = os.environ.get("SECRET_KEY", "only-for-the-example")
site.config["SESSION_COOKIE_SAMESITE"] = "Lax"

page = application(app)


@site.before_request
def log_in_first() -> Answer | None:
    """Let nobody see anything but the login before it."""
    if request.endpoint == "login" or "is_staff" in session:
        return None
    return redirect(url_for("login"))


@site.route("/login", methods=["GET", "POST"])
def login() -> Answer | str:
    """Ask for the password of the staff."""
    if request.method == "GET":
        return '<form method="post"><input type="password" name="password"><button>Log in</button></form>'
    if not compare_digest(request.form["password"].encode(), PASSWORD.encode()):
        abort(403)
    session["is_staff"] = True
    return redirect(url_for("locks"))


@site.route("/locks/", defaults={"view": ""})
@site.route("/locks/<path:view>")
def locks(view: str) -> Answer:
    """Show the page of the locks. It is a view like others, so what protects those protects it."""
    environ = {**request.environ, "SCRIPT_NAME": f"{request.script_root}/locks", "PATH_INFO": f"/{view}"}
    return Response.from_app(page, environ)


@site.post("/accounts/<int:account_id>/sync")
def sync(account_id: int) -> tuple[dict[str, object], int]:
    """Start it, or answer with the one on its way."""
    result = sync_account.delay(account_id)
    answer = {"task_id": result.id, "is_duplicate": result.is_duplicate}
    return answer, 200 if result.is_duplicate else 202
