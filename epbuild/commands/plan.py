"""`epbuild plan`: the state of every step of a recipe."""

from __future__ import annotations

from epbuild.engine.events import Progress
from epbuild.session.request import Request
from epbuild.session.session import open_session
from epbuild.session.snapshot import read_last, read_survey
from epbuild.survey.status import Survey


def survey(request: Request, progress: Progress | None = None) -> Survey:
    """Return the state of every step, with the reasons to run it. Raises EpbuildError.

    Builds nothing and provisions no toolchain. If nothing has changed since the last run, the survey contains only the
    states of steps. `progress` receives events while files are hashed.
    """
    last = read_last(request)
    if last is not None:
        return read_survey(last)
    with open_session(request, progress) as session:
        return session.survey()
