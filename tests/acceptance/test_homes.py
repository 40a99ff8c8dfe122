"""What waits beside another broker than the lock server: two spellings of one broker, and two brokers."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import amqp
import pytest
from celery import Celery
from kombu import Connection, Exchange

from celery_redislock.receiving.proof import broker_of, connect
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.paths import ELSEWHERE, RABBITMQ
from tests.acceptance.project import open_project
from tests.acceptance.rabbitmq import RabbitMQ, rabbitmq_node
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.servers import EmbeddedServer

pytestmark = pytest.mark.law(2)

ProjectMaker = Callable[..., Project]


@pytest.fixture(params=[ELSEWHERE, RABBITMQ])
def on(request: pytest.FixtureRequest) -> str:
    """A path on which the lock server is not the broker."""
    return str(request.param)


@pytest.fixture
def broker(on: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a broker that can be spelled otherwise."""
    if on == RABBITMQ:
        start: Callable[[], RabbitMQ] = request.getfixturevalue("start_rabbitmq")
        yield start().url
    else:
        with EmbeddedServer(port=0) as server:
            yield f"redis://127.0.0.1:{server.port}/0"


def otherwise(url: str) -> str:
    """Spell a broker's URL otherwise."""
    return url.replace("127.0.0.1", "localhost")


def waiting_behind_one(project: Project, key: str, number: int) -> list[str]:
    """Publish a call whose body is on, and so many that wait for it; return the ids of these."""
    project.while_executing.apply_async((key,), lock_ttl=LONG_LEASE)
    project.wait_started(key)
    sent = []
    for _ in range(number):
        sent.append(project.while_executing.delay(key).id)
        project.wait_parked(key, len(sent))
    return sent


def ids(project: Project, key: str) -> list[str]:
    """The task ids of a key's bodies, in order."""
    return [body.task_id for body in project.bodies(key)]


def test_a_line_goes_on_after_a_deploy_that_spells_the_broker_otherwise(
    new_project: ProjectMaker, key: str, on: str, broker: str
) -> None:
    """The whole fleet is killed while three calls wait; the next one has another URL."""
    project = new_project(path=on, broker=broker)
    former = project.start_worker("prefork")
    with project.kept_on(key):
        sent = waiting_behind_one(project, key, 3)
        former.end()
    project.workers.clear()
    project.start_workers(1, "prefork", broker=otherwise(broker))
    project.wait_ended(key, len(sent))
    assert ids(project, key)[1:] == sent


#: One who may configure one queue, and one who may do all.
USERS = ("asks:asks", "guest:guest")

FEDERATED = '<<"{\\"federation-upstream-set\\":\\"all\\"}">>'

#: What an operator may do to two brokers that makes them alike: one name for both clusters; definitions of
#: one that are imported into the other; a policy by which that federates all that it can.
ALIKE = (
    'rabbit_nodes:set_cluster_name(<<"rabbit@one">>, <<"test">>).',
    '{ok, File} = file:read_file("DEFINITIONS"), rabbit_definitions:import_raw(File).',
    'rabbit_runtime_parameters:parse_set(<<"/">>, <<"federation-upstream">>, <<"one">>, UPSTREAM, none).',
    f'rabbit_policy:parse_set(<<"/">>, <<"all">>, <<".*">>, {FEDERATED}, <<"0">>, <<"all">>, <<"test">>).',
)
EXPORT = 'file:write_file("DEFINITIONS", rabbit_json:encode(rabbit_definitions:all_definitions())).'


def exchanges(url: str, *names: str) -> set[str]:
    """Those of these exchanges that are on a broker."""
    found = set()
    with Connection(url) as connection:
        for name in names:
            with suppress(amqp.NotFound), connection.channel() as channel:
                channel.exchange_declare(name, type="direct", passive=True)
                found.add(name)
    return found


@pytest.mark.slow
def test_what_waits_beside_two_brokers_that_look_alike_crosses_from_neither_to_the_other(
    new_project: ProjectMaker, key: str, start_rabbitmq: Callable[[], RabbitMQ], tmp_path: Path
) -> None:
    """One lock server for both: what belongs to the broker whose workers are away waits for them."""
    one = start_rabbitmq()
    project = new_project(path=RABBITMQ)
    with rabbitmq_node(tmp_path, "rabbitmq_federation") as other:
        former = project.start_worker("prefork")
        with project.kept_on(key):
            sent = waiting_behind_one(project, key, 2)
            with Connection(one.url) as connection:
                Exchange("copied", "direct", channel=connection.default_channel).declare()
            definitions = str(tmp_path / "definitions")
            assert one.tell(EXPORT.replace("DEFINITIONS", definitions)) == "{value,ok,[]}"
            one.tell(ALIKE[0])
            for line in ALIKE:
                upstream = f'<<"{{\\"uri\\":\\"{one.url.rstrip("/")}\\"}}">>'
                said = other.tell(line.replace("DEFINITIONS", definitions).replace("UPSTREAM", upstream))
                assert said.startswith("{value,ok,"), said
            with Connection(other.url) as connection:
                Exchange("federated", "direct", channel=connection.default_channel).declare()
            wait_until(lambda: exchanges(one.url, "federated"), PATIENCE, "the policy is carried out")
            assert exchanges(other.url, "copied") == {"copied"}
            there = open_project({**project.plan, "broker": other.url})
            [worker] = project.start_workers(1, "prefork", broker=other.url)
            sent.append(there.tasks["project.while_executing"].delay(key).id)
            project.wait_parked(key, 3)
            former.end()
        project.workers.remove(former)
        project.wait_lines("but its worker was killed")
        throughout(3.0, lambda: None)
        assert project.parked(key) == sent
        assert len(project.bodies(key)) == 1
        project.start_worker("prefork")
        project.wait_ended(key, len(sent))
        there.close()

    store = project.while_executing.lock_for(key)._store
    assert len({proof.name for proof in store.homes().values()}) == len(store.homes()) == 2
    assert ids(project, key)[1:] == sent
    assert [body.worker == worker.process.pid for body in project.bodies(key)] == [False, False, False, True]


@pytest.mark.slow
def test_on_rabbitmq_asking_takes_no_right(start_rabbitmq: Callable[[], RabbitMQ]) -> None:
    """Declaring takes that to configure the exchange: without it, another worker has to have it."""
    node = start_rabbitmq()
    user = "rabbit_auth_backend_internal:"
    node.tell(f'{user}add_user(<<"asks">>, <<"asks">>, <<"test">>).')
    said = node.tell(
        f'{user}set_permissions(<<"asks">>, <<"/">>, <<"^celery$">>, <<".*">>, <<".*">>, <<"test">>).'
    )
    assert said == "{value,ok,[]}"
    apps = [Celery(broker=node.url.replace("guest:guest", who), set_as_current=False) for who in USERS]
    with connect(apps[0]) as connection, connect(apps[1]) as of_guest:
        asks, guest = broker_of(connection, ""), broker_of(of_guest, "")
        assert asks is not None
        assert guest is not None
        assert asks.declare() == ""
        names = [guest.declare(), guest.declare()]

        assert asks.known(["redislock.home.0", *names]) == guest.known(names) == sorted(names)
