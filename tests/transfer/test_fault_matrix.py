"""Every fault × every way of moving bytes: the right bytes, or the right error in time. Never wrong bytes."""

import uuid

import pytest
from scripts.fault_matrix import (
    BEGIN,
    DAMAGED,
    END,
    FAULTS,
    OPERATIONS,
    PAGE,
    World,
    expected,
    table,
)

from penstock.testing import FaultProxy

CELLS = [(fault, operation) for fault in FAULTS for operation in OPERATIONS]


@pytest.fixture(scope="module")
def world(object_server):
    with FaultProxy(object_server.endpoint) as proxy:
        yield World(object_server, proxy, object_server.url("train", uuid.uuid4().hex))


@pytest.mark.parametrize(("fault", "operation"), CELLS)
def test_a_fault_that_strikes_once_has_the_outcome_in_the_table(world, fault, operation):
    assert world.outcome(fault, operation, times=1) == expected(fault, operation).passing


@pytest.mark.parametrize(("fault", "operation"), CELLS)
def test_a_fault_that_stays_has_the_outcome_in_the_table(world, fault, operation):
    assert world.outcome(fault, operation, times=None) == expected(fault, operation).lasting


def test_no_cell_of_the_table_expects_damage():
    for fault, operation in CELLS:
        outcome = expected(fault, operation)
        assert DAMAGED not in (outcome.passing, outcome.lasting)


def test_the_page_shows_what_these_tests_assert():
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table({cell: expected(*cell) for cell in CELLS}), (
        "run python scripts/fault_matrix.py"
    )


def test_every_fault_of_the_proxy_is_in_the_table(fault_proxy):
    from penstock.testing import Fault

    kinds = {build().name for build in FAULTS.values()}
    known = {name for name, kind in vars(Fault).items() if isinstance(kind, classmethod)}
    assert kinds == known
