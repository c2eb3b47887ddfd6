"""Actions on other machines with scripted answers. Inputs and results go through a real remote cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.placement import RELEASE, Offer, Placement, list_needed_labels
from epbuild.cluster.protocol import MachineReply
from epbuild.cluster.request import ActionRequest
from epbuild.core.digest import hash_file
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, PlanError, Problem
from epbuild.engine.events import EventList, Progress, Warned, count_step_bytes
from epbuild.engine.loop import IdleActions
from epbuild.engine.scheduler import Cost, Runnable
from epbuild.plan.made import KeyedAction
from epbuild.session.remote_build import RemoteMachines, RemoteResult, open_cluster
from epbuild.session.request import RemoteChoice
from epbuild.session.session import open_session
from tests.session.shared_machines import machines_in
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, Workshop
from tests.support.moments import at_each_call

NO_DEVICE = EnvironmentFailure(Problem("EPB542", "it has no device"))


class Scripted:
    """Executor of machines that give one answer each, in order."""

    def __init__(self, replies: Sequence[MachineReply]) -> None:
        self.replies = list(replies)
        self.labels: frozenset[str] = frozenset()
        self.requests: list[ActionRequest] = []
        self.without: list[frozenset[str]] = []
        self.closed = False

    def offers(self) -> Sequence[Offer]:
        return [Offer(machine, self.labels, 1, 1 << 30) for machine in dict.fromkeys(reply.machine for reply in self.replies)]

    def wait_for_offer(self, placement: Placement, actions: int) -> None: ...

    def execute(self, request: ActionRequest, placement: Placement, progress: Progress) -> MachineReply:
        self.requests.append(request)
        self.without.append(placement.without)
        return self.replies[len(self.requests) - 1]

    def close(self) -> None:
        self.closed = True


class Case:
    """Build whose classifier other machines compile."""

    def __init__(self, workshop: Workshop, replies: Sequence[MachineReply], stack: ExitStack) -> None:
        self.events, self.executor, self.idle = EventList(), Scripted(replies), IdleActions()
        session = stack.enter_context(open_session(workshop.request, self.events, builds=True))
        assert session.remote is not None
        assert session.shared.results is not None
        found = session.survey()
        status, action = found.actions[CLASSIFIER], found.plan.actions[CLASSIFIER]
        assert status.key is not None
        self.session, self.action = session, action
        self.subject = KeyedAction(action, status.key, status.document, ())
        self.emission = found.plan.actions[EMIT_CLASSIFIER]
        self.executor.labels = list_needed_labels(action, session.toolchains.find_locked_environment(action)[0]) | {RELEASE}
        self.machines = RemoteMachines(
            self.executor, session.remote, session.shared.results, session.surveyor, self.events, session.toolchains
        )

    def make(self) -> RemoteResult | None:
        return self.machines.run(self.subject, Runnable(CLASSIFIER, (), Cost(1.0, measured=True), 1), self.idle)

    def failure(self) -> EpbuildError:
        with pytest.raises(EpbuildError) as failure:
            self.make()
        assert len(self.idle) == 0
        return failure.value


Open = Callable[..., Case]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Yield a function that opens a build. With `has_built`, its remote cache has the results of another machine."""
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", str(tmp_path / "remote"))
    machines = machines_in(tmp_path, monkeypatch)
    with ExitStack() as stack:

        def make(*replies: MachineReply, has_built: bool = True) -> Case:
            client = machines("client")
            client.remote = RemoteChoice("write")
            case = Case(client, replies, stack)
            if has_built:  # after the survey, which would find the result there
                builder = machines("builder")
                builder.remote = RemoteChoice("write")
                builder.build()
            return case

        yield make


@pytest.mark.parametrize("outcome", ["made", "found"])
def test_a_remote_result_is_read_from_the_remote_cache(opened: Open, outcome: str) -> None:
    case = opened(MachineReply(outcome, "builder"))  # type: ignore[arg-type]
    made = case.make()
    assert made is not None
    assert (made.machine, made.is_new) == ("builder", outcome == "made")
    assert set(made.result["artifacts"])
    [request] = case.executor.requests
    assert request.key == case.subject.key


def test_inputs_are_uploaded_before_a_machine_runs_the_action(opened: Open) -> None:
    case = opened(MachineReply("made", "builder"))
    counted: list[Mapping[str, Any]] = []
    with at_each_call(count_step_bytes, lambda values: counted.append({**values})):
        case.make()
    assert case.session.remote is not None
    files = case.executor.requests[0].files
    source = {blob.digest: blob for blob in files}[hash_file(case.action.files[0])]
    case.session.remote.check(source)
    uploads = {(values["step"], values["total"]) for values in counted if values["doing"].startswith("uploading ")}
    assert uploads == {(case.action.steps[0], sum(blob.size for blob in files))}


def test_the_error_of_a_machine_names_the_machine(opened: Open) -> None:
    error = BuildError(Problem("EPB400", "Operator Foo is not supported"))
    failure = opened(MachineReply.failure("failed", "builder", error)).failure()
    assert isinstance(failure, BuildError)
    assert [problem.message for problem in failure.problems] == ["on builder: Operator Foo is not supported"]


def test_a_reply_without_a_result_in_the_remote_cache_is_an_error(opened: Open) -> None:
    failure = opened(MachineReply("made", "builder"), has_built=False).failure()
    assert [problem.code for problem in failure.problems] == ["EPB537"]


def test_an_action_runs_here_if_every_machine_turns_out_unfit(opened: Open) -> None:
    case = opened(
        MachineReply.failure("unable", "first", NO_DEVICE, is_unfit=True),
        MachineReply.failure("unable", "second", NO_DEVICE, is_unfit=True),
    )
    assert case.make() is None
    assert case.executor.without == [frozenset(), {"first"}]


def test_an_action_is_tried_on_at_most_three_machines(opened: Open) -> None:
    full = EnvironmentFailure(Problem("EPB405", "the disk is full"))
    case = opened(*(MachineReply.failure("unable", name, full) for name in ("first", "second", "third", "fourth")))
    assert [problem.message for problem in case.failure().problems] == ["on third: the disk is full"]
    assert len(case.executor.requests) == 3


def test_a_machine_that_refuses_a_toolchain_gets_no_further_actions(opened: Open) -> None:
    other = EnvironmentFailure(Problem("EPB532", "its toolchain is another"))
    refused = MachineReply.failure("refused", "first", other)
    case = opened(refused, MachineReply("made", "builder"), MachineReply("made", "builder"))
    assert case.make() is not None
    assert [event.problem.code for event in case.events if isinstance(event, Warned)] == ["EPB541"]
    assert case.make() is not None
    assert case.executor.without == [frozenset(), {"first"}, {"first"}]


def test_machines_run_only_offered_actions_and_never_emit_steps(opened: Open) -> None:
    case = opened(MachineReply("made", "builder"))
    assert case.machines.runs(case.action)
    assert not case.machines.runs(case.emission)
    case.executor.labels = frozenset({RELEASE})
    assert case.machines.runs(case.action), "it is decided once"
    assert not case.machines.runs(replace(case.action, id="another"))  # type: ignore[type-var]


def test_machines_with_another_release_are_named_and_get_no_actions(opened: Open) -> None:
    case = opened(MachineReply("made", "old"))
    case.executor.labels -= {RELEASE}
    warning = case.machines.check_releases()
    assert warning is not None
    assert (warning.code, warning.message.split()[0]) == ("EPB540", "old")


def test_a_cluster_without_a_remote_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    with open_session(workshop.request) as session:
        address = ClusterAddress("tcp://127.0.0.1:1")
        opening = open_cluster(address, session.shared, session.surveyor, EventList(), session.toolchains)
        with pytest.raises(PlanError) as failure, opening:
            pass
    assert [problem.code for problem in failure.value.problems] == ["EPB538"]
