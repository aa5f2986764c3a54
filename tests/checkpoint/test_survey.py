"""A pickle is read without running any of it."""

import io
import os
import pickle
import zipfile
from dataclasses import dataclass

import pytest
import torch

from penstock.checkpoint.survey import Opaque, TensorSpec, storages_in, survey
from penstock.checkpoint.torchfile import Unplannable


def pickle_of(state):
    file = io.BytesIO()
    torch.save(state, file)
    with zipfile.ZipFile(file) as archive:
        return memoryview(archive.read("archive/data.pkl"))


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("penstock-survey-ran-me",)


@dataclass
class Holder:
    inside: object


def test_nothing_in_the_pickle_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = survey(memoryview(pickle.dumps({"a": Hostile(), "b": 1})))
    assert found.tree["b"] == 1
    assert isinstance(found.tree["a"], Opaque)
    assert not [*tmp_path.iterdir()]


def test_tensors_are_known_by_storage_shape_and_strides():
    base = torch.arange(12.0).reshape(3, 4)
    tree = survey(pickle_of({"t": base.t(), "rows": [base[1:]]})).tree
    assert tree["t"] == TensorSpec(tree["t"].storage, torch.float32, 0, (4, 3), (1, 4))
    assert tree["rows"][0].offset == 4
    assert tree["rows"][0].storage == tree["t"].storage


def test_storages_are_found_inside_objects_that_are_not_understood():
    found = survey(pickle_of({"x": Holder([torch.ones(2), {"y": torch.eye(3).to_sparse()}])}))
    assert len({ref.key for ref in storages_in(found.tree["x"])}) == 3


def test_the_order_of_mentions_is_that_of_the_pickle():
    one, two = torch.ones(1), torch.ones(2)
    keys = [ref.key for ref in survey(pickle_of([one, two, one[:], torch.empty(0)])).mentions]
    assert keys == ["0", "1", "0", "2"]


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x80\x02.", b"\x80\x02Q."])
def test_what_is_no_pickle_is_not_planned(data):
    with pytest.raises(Unplannable):
        survey(memoryview(data))


def test_a_cycle_ends():
    loop = [torch.ones(2)]
    loop.append(loop)
    found = survey(pickle_of(loop))
    assert [ref.key for ref in storages_in(found.tree)] == ["0"]
