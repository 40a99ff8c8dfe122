"""Attributes on OpenTelemetry's spans, with its own SDK."""

import subprocess
import sys
import textwrap

PROGRAM = """
import json
{first}
from celery import Celery
from celery_redislock import SingletonTask, testing
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
tracer = trace.get_tracer("t")
app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.update(redislock_eager=True)

@app.task(base=SingletonTask, name="shop.sync", lock_key="account:{{account_id}}", bind=True)
def sync(self, account_id):
    pass

with testing.memory_locks(app):
    with tracer.start_as_current_span("first"):
        first = sync.delay(7)
    with tracer.start_as_current_span("second"):
        sync.delay(7)
    with tracer.start_as_current_span("run"):
        sync.apply((8,))
print(json.dumps([dict(span.attributes) for span in exporter.get_finished_spans()] + [first.id]))
"""


def attributes(first: str) -> str:
    program = textwrap.dedent(PROGRAM.format(first=first))
    return subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)


def test_the_span_of_a_call_and_of_a_run_names_its_lock_and_what_became_of_it() -> None:
    """Accepted, skipped with its holder, started."""
    import json

    accepted, skipped, started, holder = json.loads(attributes("import opentelemetry.trace"))
    assert accepted == {"redislock.key": "account:7", "redislock.outcome": "accepted"}
    assert skipped == {"redislock.key": "account:7", "redislock.outcome": "skip", "redislock.holder": holder}
    assert started == {"redislock.key": "account:8", "redislock.outcome": "started"}


def test_opentelemetry_is_not_imported_by_us() -> None:
    """A program that does without it pays nothing."""
    program = "import sys, celery_redislock.publishing.publish; print('opentelemetry' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "False\n"
