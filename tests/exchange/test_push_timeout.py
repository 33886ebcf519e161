"""How long a node waits for a chunk that another peer holds and that a parent should push."""

from __future__ import annotations

import pytest

from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.timeout import PushTimeout

CONFIG = ExchangeConfig()


def test_push_timeout_has_a_first_value_before_any_push() -> None:
    assert PushTimeout(CONFIG).seconds == CONFIG.push_first


def test_push_timeout_is_the_mean_and_four_deviations() -> None:
    timeout = PushTimeout(CONFIG)
    for _ in range(200):
        timeout.sample(2.0)
        timeout.sample(4.0)
    assert timeout.seconds == pytest.approx(3.0 + 4 * 1.0, rel=0.05)


@pytest.mark.parametrize(("seconds", "timeout"), [(0.0, CONFIG.push_least), (1000.0, CONFIG.push_most)])
def test_push_timeout_stays_within_its_bounds(seconds: float, timeout: float) -> None:
    made = PushTimeout(CONFIG)
    for _ in range(100):
        made.sample(seconds)
    assert made.seconds == timeout
