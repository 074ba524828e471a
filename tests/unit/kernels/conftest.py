"""Every test that takes `back_end` runs on each implementation that this machine has."""

from __future__ import annotations

import pytest

from atoll.kernels.back_ends import choices, load, using


@pytest.fixture(params=choices())
def back_end(request):
    with using(load(request.param)):
        yield request.param
