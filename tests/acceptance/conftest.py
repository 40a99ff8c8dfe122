"""Projects with workers: one per pool and path for the whole session, more where a test needs one for itself.

Tests that share a project keep to keys of their own. Where workers are killed,
servers go away or settings differ, a test opens its own.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_redislock.locks.notes import NOTES, Notes
from celery_redislock.publishing import claim
from tests.acceptance.broken_system import Broken, broken_system
from tests.acceptance.brokers import RABBITMQ_QUEUES, Site, conf_of
from tests.acceptance.endings.ending import SHARED
from tests.acceptance.harness import POOLS, Project
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ, paths_of
from tests.acceptance.processes import needs
from tests.acceptance.rabbitmq import RabbitMQ, rabbitmq_node
from tests.acceptance.terms import PATIENCE
from tests.faults import FaultyProxy, faulty_proxy
from tests.servers import EmbeddedServer
from tests.tiers import slow

ProjectMaker = Callable[..., Project]

_OPEN: list[Project] = []


#: Where the pool makes a difference; elsewhere threads are tried with what is slow.
_POOLS_DIFFER = {"test_law_1_mutual_exclusion", "test_law_5_freed_before_seen"}

_ON_RABBITMQ = {RABBITMQ, *RABBITMQ_QUEUES}

#: Fixtures that open projects.
_PROJECTS = {
    "project", "prefork", "new_project", "faulty", "open_scene", "rabbitmq", "site_on", "new_site",
    "new_watched", "classes",
}  # fmt: skip


# First, so that a test has the same name whether it is collected alone or with all others.
@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "path" in metafunc.fixturenames and (paths := paths_of(metafunc.definition)):
        metafunc.parametrize("path", paths, indirect=True, scope="module")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What takes its time, or repeats a row, is played on the first path only.
    repeated = [item for item in items if _is_slow(item) and _is_on_another_path(item)]
    items[:] = [item for item in items if item not in repeated]
    config.hook.pytest_deselected(items=repeated)
    for item in items:
        if item.get_closest_marker("timing") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))
        fixtures, given = set(getattr(item, "fixturenames", ())), _given(item)
        is_on_rabbitmq = "rabbitmq" in fixtures or any(each in _ON_RABBITMQ for each in _texts(given))
        if is_on_rabbitmq:
            item.add_marker(pytest.mark.slow)
        group = "rabbitmq" if is_on_rabbitmq else _shared_project(fixtures, given)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if not _PROJECTS.intersection(fixtures):
            continue
        # Celery 5.7.0's own Redis result backend calls SETEX in this process; redis-py 8.1 deprecates it.
        item.add_marker(pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"))
        if _is_slow(item) or _is_on_another_path(item):
            item.add_marker(pytest.mark.slow)


def _given(item: pytest.Item) -> Mapping[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _texts(given: Mapping[str, Any]) -> list[str]:
    return [each for each in given.values() if isinstance(each, str)]


def _shared_project(fixtures: set[str], given: Mapping[str, Any]) -> str | None:
    """Name the project that a test shares, if it does.

    The tests of a group run in one process: their workers, or RabbitMQ's node, start once in a session.
    """
    pool, kind = given.get("project"), given.get("path", FUSED)
    if pool is None and "prefork" in fixtures:
        pool = "prefork"
    if "open_scene" in fixtures:
        stage = given["case"].stage or given["ending"].stage
        pool, kind = (given["pool"] if stage.name else None), (FUSED if stage is SHARED else stage.name)
    elif "somewhere" in fixtures:
        pool, kind = given["somewhere"], "everywhere"
    elif "site_on" in fixtures:
        pool, kind = given.get("broker", "redis"), "site"
    return None if pool is None else f"{kind}, {pool}"


def _is_slow(item: pytest.Item) -> bool:
    is_repetition = _given(item).get("project") == "threads" and item.path.stem not in _POOLS_DIFFER
    return is_repetition or item.get_closest_marker("slow") is not None


def _is_on_another_path(item: pytest.Item) -> bool:
    """Whether a law's test is played on a path that is not its first one."""
    return _given(item).get("path") in paths_of(item)[1:]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.failed:
        for project in _OPEN:
            if project in getattr(item, "funcargs", {}).values() or project in getattr(item, "_projects", []):
                for beat in project.beats:
                    report.sections.append(("beat log", beat.log[-12000:]))
                # A test that has ended one of its workers has taken its log with it.
                for worker in (each for each in project.workers if each.log_path.exists()):
                    report.sections.append(("worker log", worker.log[-12000:]))
                    report.sections.append(("worker stacks", worker.stacks()))


@pytest.fixture(autouse=True)
def _nobody_writes() -> None:
    """This process is a publisher, and writes what it adds up as any other one."""
    Notes.__init__(NOTES)  # a test of another kind may have said that there is a thread


@pytest.fixture(autouse=True)
def forget_refusals() -> Iterator[None]:
    """Let the next test publish the way of its path: after a refusal, a process looks first for a while."""
    yield
    claim._refused.clear()


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"k{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def another_server() -> Iterator[EmbeddedServer]:
    """A lock server that is neither the broker nor the result backend."""
    with EmbeddedServer(binary=os.environ.get("CELERY_REDISLOCK_TEST_BINARY")) as server:
        yield server


@pytest.fixture(scope="session")
def open_on(
    celery_url: str, redis_url: str, another_server: EmbeddedServer, start_rabbitmq: Callable[[], RabbitMQ]
) -> ProjectMaker:
    """Opens a project on a path, the first one where none is given; options as for a project."""

    def open_on(*, path: str = FUSED, conf: Mapping[str, Any] | None = None, **options: Any) -> Project:
        if path == ELSEWHERE:
            conf = {"redislock_url": another_server.url, **(conf or {})}
        elif path == RABBITMQ:
            options = {"broker": start_rabbitmq().url, **options}
        broker = options.pop("broker", celery_url)
        if broker.startswith("amqp://"):
            # RabbitMQ carries messages only; rpc:// results need to be told where the locks are.
            options = {"backend": celery_url, **options}
            conf = {"redislock_url": celery_url, **(conf or {})}
        project = Project(broker, redis_url, f"project-{secrets.token_hex(4)}", conf=conf, **options)
        _OPEN.append(project)
        return project

    return open_on


@contextmanager
def opening(open_on: ProjectMaker, projects: list[Project]) -> Iterator[ProjectMaker]:
    """Let projects be opened, which are in the list, and end when the block does."""

    def make(**options: Any) -> Project:
        projects.append(open_on(**options))
        return projects[-1]

    yield make
    for project in projects:
        _OPEN.remove(project)
        project.close()


@pytest.fixture(scope="session")
def open_for_session(open_on: ProjectMaker) -> Iterator[ProjectMaker]:
    """Opens projects that tests share."""
    with opening(open_on, []) as make:
        yield make


@pytest.fixture(scope="session")
def project_on(open_for_session: ProjectMaker) -> Callable[..., Project]:
    """Opens the shared project of a pool and path: four bodies at once, in one worker (solo: two, one each).

    With other options or settings it is another one. A solo worker asks its queue for the next message when
    its body has ended, so the other worker gets it.
    """
    projects: dict[tuple[object, ...], Project] = {}

    def project_on(
        pool: str,
        path: str = FUSED,
        *arguments: str,
        concurrency: int = 4,
        workers: int | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> Project:
        which = (pool, path, arguments, concurrency, workers, str(conf))
        if which not in projects:
            project = projects[which] = open_for_session(path=path, conf=conf)
            number, bodies = (2, 1) if pool == "solo" else (1, concurrency)
            project.start_workers(workers or number, pool, *arguments, concurrency=bodies)
        return projects[which]

    return project_on


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest) -> str:
    """The path a test is played on; see ``paths.py``."""
    return getattr(request, "param", FUSED)


@pytest.fixture(params=POOLS)
def project(request: pytest.FixtureRequest, project_on: Callable[..., Project], path: str) -> Project:
    """The shared project of each pool."""
    return project_on(request.param, path)


@pytest.fixture
def prefork(project_on: Callable[..., Project], path: str) -> Project:
    """The shared project of the prefork pool, for what only it does, or what does not depend on the pool."""
    return project_on("prefork", path)


@pytest.fixture(scope="module")
def network() -> Iterator[FaultyProxy]:
    """The network between a project and its lock server."""
    with EmbeddedServer(port=0) as server:
        assert server.port is not None
        with faulty_proxy(server.port) as proxy:
            proxy.delay = 0.5
            yield proxy


@pytest.fixture(scope="module")
def faulty(open_on: ProjectMaker, path: str, network: FaultyProxy) -> Iterator[Project]:
    """A project with two workers, whose lock server is behind a network that a test makes faulty.

    So are broker and results, where they are on the same server.
    """
    behind = {"broker": network.url} if path == FUSED else {"conf": {"redislock_url": network.url}}
    with opening(open_on, []) as make:
        project = make(path=path, **behind)
        project.start_workers(2, "prefork", concurrency=2)
        project.executed.delay("before").get(timeout=PATIENCE)  # the server knows the scripts
        yield project


@pytest.fixture
def new_project(request: pytest.FixtureRequest, open_on: ProjectMaker, path: str) -> Iterator[ProjectMaker]:
    """Opens projects for one test, which may do with them what it wants."""
    request.node._projects = projects = []
    with opening(partial(open_on, path=path), projects) as make:
        yield make


@pytest.fixture(scope="session")
def start_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], RabbitMQ]]:
    """Starts the session's own RabbitMQ node when first called; projects on it have queues of their own."""
    nodes: list[RabbitMQ] = []
    with ExitStack() as stack:

        def start() -> RabbitMQ:
            if not nodes:
                nodes.append(stack.enter_context(rabbitmq_node(tmp_path_factory.mktemp("rabbitmq"))))
            return nodes[0]

        yield start


@pytest.fixture(scope="session")
def open_site(start_rabbitmq: Callable[[], RabbitMQ]) -> Callable[..., Site]:
    """Opens a project on a broker, where messages are soon delivered again, by a maker of projects."""

    def open_site(
        make: ProjectMaker, broker: str, *, conf: Mapping[str, Any] | None = None, **more: Any
    ) -> Site:
        node = start_rabbitmq() if broker in RABBITMQ_QUEUES else None
        options = {"broker": node.url} if node is not None else {}
        path = broker if broker == ELSEWHERE else FUSED
        project = make(path=path, conf={**conf_of(broker), **(conf or {})}, **options)
        return Site(project, node, **more)

    return open_site


@pytest.fixture(scope="session")
def shared_sites() -> dict[str, Site]:
    """The sites that were opened so far, by broker."""
    return {}


@pytest.fixture
def site_on(
    request: pytest.FixtureRequest,
    open_site: Callable[..., Site],
    open_for_session: ProjectMaker,
    shared_sites: dict[str, Site],
) -> Callable[[str], Site]:
    """Returns the shared site of a broker."""

    def site_on(broker: str) -> Site:
        if broker not in shared_sites:
            shared_sites[broker] = open_site(open_for_session, broker)
        request.node._projects = [shared_sites[broker].project]
        return shared_sites[broker]

    return site_on


@pytest.fixture
def new_site(open_site: Callable[..., Site], new_project: ProjectMaker) -> Callable[..., Site]:
    """Opens sites for one test."""
    return partial(open_site, new_project)


@pytest.fixture
def lock_server() -> Iterator[EmbeddedServer]:
    """A lock server that may be paused and killed."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def broken() -> Iterator[Broken]:
    """The system that is broken in every way; with hostile texts. Tests only look at it."""
    needs("faketime")
    with broken_system(hostile=True) as broken:
        yield broken


@pytest.fixture(params=["quorum", slow("classic")])
def rabbitmq(request: pytest.FixtureRequest, site_on: Callable[..., Site]) -> Project:
    """The shared project of each kind of RabbitMQ's queues: two workers with two children each."""
    return site_on(request.param).ready()


# A result that is dropped is unsubscribed from at once, with twenty retries, a second apart: where a test has
# ended its server, whatever collects garbage later waits for that (celery 5.5.0 to 5.7.0).
AsyncResult.__del__ = lambda _: None
