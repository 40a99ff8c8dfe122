"""Scenes: shops for the endings, shared where an ending does them no harm."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.acceptance.harness import Shop
from tests.acceptance.ladder.ending import SHARED, Stage
from tests.acceptance.ladder.scene import Scene
from tests.servers import EmbeddedServer


@pytest.fixture(scope="session")
def narrow_shop_on(open_shop_for_session: Callable[..., Shop]) -> Callable[[str, Stage], Shop]:
    """Opens the shared shop of a pool and stage."""
    shops: dict[tuple[str, str], Shop] = {}

    def narrow_shop_on(pool: str, stage: Stage) -> Shop:
        if (pool, stage.name) not in shops:
            shop = shops[pool, stage.name] = open_shop_for_session(conf=stage.conf)
            shop.start_workers(stage.workers, pool, *stage.arguments, concurrency=stage.concurrency)
        return shops[pool, stage.name]

    return narrow_shop_on


@pytest.fixture
def open_scene(
    request: pytest.FixtureRequest,
    key: str,
    shop_on: Callable[[str], Shop],
    narrow_shop_on: Callable[[str, Stage], Shop],
    new_shop: Callable[..., Shop],
    celery_url: str,
) -> Iterator[Callable[[str, Stage], Scene]]:
    """Opens a scene in a pool: a stage with its workers at work."""
    with ExitStack() as stack:

        def scene_in(shop: Shop, broker: EmbeddedServer | None = None) -> Scene:
            return stack.enter_context(closing(Scene(shop, key, broker)))

        def of_its_own(pool: str, stage: Stage) -> Scene:
            broker = stack.enter_context(EmbeddedServer()) if stage.own_broker else None
            conf: dict[str, Any] = dict(stage.conf)
            apart: dict[str, Any] = {}
            if broker is not None:
                apart = {"broker": broker.url, "backend": celery_url}
                conf["redislock_url"] = celery_url
            shop = new_shop(conf=conf, **apart)
            if stage.workers:
                shop.start_workers(stage.workers, pool, *stage.arguments, concurrency=stage.concurrency)
            return scene_in(shop, broker)

        def open_scene(pool: str, stage: Stage) -> Scene:
            if not stage.name:
                return of_its_own(pool, stage)
            shop = shop_on(pool) if stage is SHARED else narrow_shop_on(pool, stage)
            request.node._shops = [shop]  # whose log a failure shows
            return scene_in(shop)

        yield open_scene
