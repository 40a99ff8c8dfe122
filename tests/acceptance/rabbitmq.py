"""A RabbitMQ node of one's own: no file, port, cookie or epmd of it is anybody else's."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.processes import Process, free_port, needs, started, until
from tests.acceptance.terms import PATIENCE

#: Seconds a node may take until it is up.
STARTING = 60.0
#: Erlang's schedulers else spin for work, on cores that the tests need.
_IDLE_QUIETLY = "+sbwt none +sbwtdcpu none +sbwtdio none"
_LOCALLY = f"-kernel inet_dist_use_interface {{127,0,0,1}} {_IDLE_QUIETLY}"

#: One line: what the operator below is told.
_CLOSE = (
    '[rabbit_networking:close_connection(Pid, "cut by a test")'
    " || [{pid, Pid}, {client_properties, About}]"
    " <- rabbit_networking:connection_info_all([pid, client_properties]),"
    " is_list(About),"  # one that has not introduced itself yet has none
    ' {longstr, Name} <- [rabbit_misc:table_lookup(About, <<"connection_name">>)],'
    ' string:prefix(Name, <<"START">>) =/= nomatch].'
)

#: Evaluates on the node what it is told, line by line, and says what came of it. ``rabbitmqctl`` would start
#: an Erlang of its own for each line: a second of both cores, and half a minute on a busy machine.
_OPERATOR = """
    Serve = fun(Again) ->
        case io:get_line("") of
            eof -> halt();
            Line ->
                {ok, Tokens, _} = erl_scan:string(Line),
                {ok, Expressions} = erl_parse:parse_exprs(Tokens),
                Answer = rpc:call('NODE', erl_eval, exprs, [Expressions, []]),
                io:format("answer: ~w~n", [Answer]),
                Again(Again)
        end
    end,
    Serve(Serve).
"""


def node_environment(home: Path, plugins: str = "") -> dict[str, str]:
    """Return the environment in which RabbitMQ's programs mean a node that meets no other, on free ports."""
    home.mkdir()
    (home / "plugins").write_text(f"[{plugins}].\n")
    port = str(free_port())
    return {
        "HOME": str(home),  # where the cookie is made
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
        "RABBITMQ_NODENAME": f"redislock-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _LOCALLY,
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
    }


def epmd_command(environment: Mapping[str, str]) -> list[str]:
    """Return what starts the node's epmd in the foreground, so that it is ours to end.

    The node would start one that outlives it.
    """
    return ["epmd", "-address", "127.0.0.1", "-port", environment["ERL_EPMD_PORT"]]


class RabbitMQ:
    """A running node."""

    def __init__(self, environment: Mapping[str, str], operator: Process) -> None:
        """Stand for the node that this environment means; the operator knows it."""
        self._operator = operator
        self.url = f"amqp://guest:guest@127.0.0.1:{environment['RABBITMQ_NODE_PORT']}//"

    def close_connections(self, start: str) -> None:
        """Close every connection whose client's name for it starts so, as a network or a node would."""
        answer = self.tell(_CLOSE.replace("START", start))
        assert answer.startswith("{value,[ok"), f"no connection's name starts with {start!r}: {answer}"

    def tell(self, line: str) -> str:
        """Evaluate a line of Erlang on the node; return what it says of that."""
        said, stdin = len(self._answers()), self._operator.process.stdin
        assert stdin is not None
        stdin.write(f"{line}\n".encode())
        stdin.flush()
        until(lambda: len(self._answers()) > said, PATIENCE, self._operator, "the operator answers")
        return self._answers()[said]

    def _answers(self) -> list[str]:
        # Up to the last line's end: what is being written is no answer yet.
        lines = self._operator.log.split("\n")[:-1]
        return [line.removeprefix("answer: ") for line in lines if line.startswith("answer: ")]


@contextmanager
def rabbitmq_node(folder: Path, plugins: str = "") -> Iterator[RabbitMQ]:
    """Run a node while the block runs; skips, or fails in CI, where RabbitMQ is not installed."""
    needs("rabbitmq-server", "epmd", "erl")
    environment = node_environment(folder / "rabbitmq", plugins)
    with (
        started(epmd_command(environment), environment, folder),
        started(["rabbitmq-server"], environment, folder) as server,
    ):
        until(lambda: "Starting broker... completed" in server.log, STARTING, server, "rabbitmq is up")
        with started(_operator_command(environment), environment, folder, stdin=subprocess.PIPE) as operator:
            yield RabbitMQ(environment, operator)


def _operator_command(environment: Mapping[str, str]) -> list[str]:
    node = environment["RABBITMQ_NODENAME"]
    command = ["erl", "-noshell", "-hidden", "-sname", f"operator-{node}"]
    return [*command, *_LOCALLY.split(), "-eval", _OPERATOR.replace("NODE", node)]
