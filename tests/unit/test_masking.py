"""Passwords in URLs, which no message may show."""

import pytest

from celery_redislock.locks.connection import mask_password


class TestMaskPassword:
    @pytest.mark.parametrize(
        ("url", "masked"),
        [
            ("redis://me:hush@host:1/0", "redis://***@host:1/0"),
            ("redis://:hu/s@h@host/0", "redis://***@host/0"),
            ("unix:///run/s?db=0&password=hush", "unix:///run/s?db=0&password=***"),
            ("redis://host:1/0", "redis://host:1/0"),
        ],
    )
    def test_a_password_is_replaced_wherever_it_stands(self, url: str, masked: str) -> None:
        assert mask_password(url) == masked

    @pytest.mark.parametrize("url", ["me:hush@host:1/0", ":hush@host", "redis:me:hush@host"])
    def test_a_url_without_its_scheme_shows_no_password_either(self, url: str) -> None:
        """This is what the error about a URL that cannot be read is about."""
        assert mask_password(url).startswith("***@host")

    def test_a_host_alone_stays_readable(self) -> None:
        assert mask_password("host:6379") == "host:6379"
