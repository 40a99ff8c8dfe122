"""What ``make test`` leaves to ``make test-all``."""

from functools import partial

import pytest

#: A parameter whose tests take their time, as ``pytest.param``.
slow = partial(pytest.param, marks=pytest.mark.slow)
