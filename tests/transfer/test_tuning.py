"""The limiter against simulated stores: it finds what pays off, gives way, and comes back."""

import heapq
import random

import pytest

from penstock.transfer.tuning import Limiter

MAXIMUM = 128


class Simulation:
    """A store whose answers take `latency_s`, and longer where more than `capacity` requests are in it.

    `spread` is the standard deviation of the logarithm of an answer's time. Time is counted, not waited for. As many
    requests are in flight as the limiter allows.
    """

    def __init__(self, limiter, *, latency_s, capacity, spread=0.0):
        self.limiter = limiter
        self.spread = spread
        self.random = random.Random(0)
        self.latency_s = latency_s
        self.capacity = capacity
        self.now = limiter._round_began
        self.flying = []
        self.free_at = self.now

    def run(self, answers):
        limits = []
        for _ in range(answers):
            while len(self.flying) < self.limiter.limit:
                # A server that takes them one after the other, `capacity` in every `latency_s`.
                self.free_at = max(self.free_at, self.now) + self.latency_s / self.capacity
                took_s = self.latency_s * self.random.lognormvariate(0, self.spread)
                done = max(self.now + took_s, self.free_at)
                heapq.heappush(self.flying, (done, self.now))
            self.now, began = heapq.heappop(self.flying)
            self.limiter.answered(self.now - began, now=self.now)
            limits.append(self.limiter.limit)
        return limits


def _mean(limits):
    return sum(limits) / len(limits)


def _limiter():
    return Limiter("s3://simulated", MAXIMUM)


@pytest.mark.parametrize("latency_s", [0.001, 0.02, 0.2])
def test_it_grows_to_the_maximum_while_more_requests_bring_more(latency_s):
    limiter = _limiter()
    simulation = Simulation(limiter, latency_s=latency_s, capacity=10_000)
    began = simulation.now
    while limiter.limit < MAXIMUM:
        simulation.run(1)
        assert simulation.now - began < 10 * max(latency_s, 0.02), "a round each, and few of them"
    settled = simulation.run(20_000)
    assert _mean(settled) > 0.9 * MAXIMUM, "and there it stays"


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_it_finds_that_out_through_the_noise_of_real_answers(spread):
    simulation = Simulation(_limiter(), latency_s=0.02, capacity=10_000, spread=spread)
    simulation.run(20_000)
    assert _mean(simulation.run(50_000)) > 0.75 * MAXIMUM


@pytest.mark.parametrize("capacity", [8, 16, 24])
def test_it_stays_low_where_more_requests_bring_nothing(capacity):
    limits = Simulation(_limiter(), latency_s=0.02, capacity=capacity).run(50_000)
    settled = limits[10_000:]
    assert _mean(settled) <= 2 * max(capacity, 16)
    assert max(settled) < MAXIMUM


@pytest.mark.parametrize("capacity", [24, 48, 64])
def test_it_finds_the_middle_and_loses_little_of_what_the_store_can_give(capacity):
    simulation = Simulation(_limiter(), latency_s=0.02, capacity=capacity)
    simulation.run(20_000)
    began = simulation.now
    simulation.run(20_000)
    best_rate = capacity / simulation.latency_s
    assert 20_000 / (simulation.now - began) > 0.97 * best_rate


def test_it_halves_when_the_store_says_slow_down():
    limiter = _limiter()
    Simulation(limiter, latency_s=0.02, capacity=10_000).run(20_000)
    for expected in (64, 32, 16, 8, 4, 2, 1, 1):
        limiter.throttled()
        assert limiter.limit == expected


def test_it_comes_back_after_it_was_throttled():
    limiter = _limiter()
    simulation = Simulation(limiter, latency_s=0.02, capacity=10_000)
    simulation.run(20_000)
    for _ in range(8):
        limiter.throttled()
    simulation.run(20_000)
    assert _mean(simulation.run(20_000)) > 0.9 * MAXIMUM


@pytest.mark.parametrize(("before_s", "after_s"), [(0.01, 0.2), (0.2, 0.01)])
def test_it_recovers_after_the_latency_changes_twentyfold(before_s, after_s):
    limiter = _limiter()
    simulation = Simulation(limiter, latency_s=before_s, capacity=10_000)
    simulation.run(20_000)
    simulation.latency_s = after_s
    simulation.run(20_000)
    assert _mean(simulation.run(20_000)) > 0.8 * MAXIMUM


def test_it_gives_way_when_answers_suddenly_take_much_longer():
    limiter = _limiter()
    simulation = Simulation(limiter, latency_s=0.02, capacity=10_000)
    simulation.run(20_000)
    simulation.capacity = 10
    simulation.run(5_000)
    assert limiter.limit < MAXIMUM / 2


def test_it_never_leaves_its_bounds():
    for maximum in (1, 2, 3, 16, 17):
        limiter = Limiter("s3://simulated", maximum)
        limits = Simulation(limiter, latency_s=0.02, capacity=10_000).run(3000)
        assert min(limits) >= 1
        assert max(limits) <= maximum


def test_the_slow_tail_is_known_after_twenty_answers():
    limiter = _limiter()
    for number in range(19):
        limiter.answered(number)
    assert limiter.slow_s(0.95) is None
    for number in range(19, 100):
        limiter.answered(number)
    assert limiter.slow_s(0.95) == 95
