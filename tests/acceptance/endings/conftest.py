"""Scenes: projects for the endings, shared where an ending does them no harm."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.acceptance.endings.ending import Stage
from tests.acceptance.endings.scene import Scene
from tests.acceptance.harness import Project
from tests.acceptance.paths import FUSED
from tests.servers import EmbeddedServer


@pytest.fixture
def open_scene(
    request: pytest.FixtureRequest,
    key: str,
    project_on: Callable[..., Project],
    new_project: Callable[..., Project],
    celery_url: str,
) -> Iterator[Callable[[str, Stage], Scene]]:
    """Opens a scene in a pool: a stage with its workers at work."""
    with ExitStack() as stack:

        def scene_in(project: Project, broker: EmbeddedServer | None = None) -> Scene:
            return stack.enter_context(closing(Scene(project, key, broker)))

        def of_its_own(pool: str, stage: Stage) -> Scene:
            broker = stack.enter_context(EmbeddedServer()) if stage.own_broker else None
            conf: dict[str, Any] = dict(stage.conf)
            apart: dict[str, Any] = {}
            if broker is not None:
                apart = {"broker": broker.url, "backend": celery_url}
                conf["redislock_url"] = celery_url
            project = new_project(conf=conf, **apart)
            if stage.workers:
                project.start_workers(stage.workers, pool, *stage.arguments, concurrency=stage.concurrency)
            return scene_in(project, broker)

        def open_scene(pool: str, stage: Stage) -> Scene:
            if not stage.name:
                return of_its_own(pool, stage)
            project = project_on(pool, FUSED, *stage.arguments, concurrency=stage.concurrency)
            request.node._projects = [project]  # whose log a failure shows
            return scene_in(project)

        yield open_scene
