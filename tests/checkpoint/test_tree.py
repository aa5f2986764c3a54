"""Dotted paths, and the parts that globs choose."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.tree import keep, leaves, matches, patterns_of

STATE = {
    "model": OrderedDict({"encoder.weight": 1, "encoder.bias": 2, "decoder.weight": 3}),
    "optimizer": {"state": {0: {"exp_avg": 4}}, "param_groups": [{"lr": 5}, {"lr": 6}]},
    "epoch": 7,
}


def test_paths_join_keys_and_positions():
    paths = [path for path, _ in leaves(STATE)]
    assert "model.encoder.weight" in paths
    assert "optimizer.state.0.exp_avg" in paths
    assert "optimizer.param_groups.1.lr" in paths


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("epoch", {"epoch": 7}),
        ("model.encoder.*", {"model": OrderedDict({"encoder.weight": 1, "encoder.bias": 2})}),
        ("*.weight", {"model": OrderedDict({"encoder.weight": 1, "decoder.weight": 3})}),
        ("model", {"model": STATE["model"]}),
        (["epoch", "optimizer.state"], {"optimizer": {"state": {0: {"exp_avg": 4}}}, "epoch": 7}),
        ("*.1.lr", {"optimizer": {"param_groups": [{}, {"lr": 6}]}}),
    ],
)
def test_a_glob_keeps_what_it_matches_and_all_below(only, expected):
    assert keep(STATE, patterns_of(only)) == expected


def test_an_empty_list_of_globs_is_refused():
    with pytest.raises(ValueError, match="only must name something"):
        patterns_of([])


TREES = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3), st.lists(inner, max_size=3)
    ),
    max_leaves=10,
).filter(lambda tree: not isinstance(tree, int))


@given(TREES, st.sampled_from(["a", "a.*", "*.b", "*", "0", "*.1.*"]))
def test_exactly_the_matching_leaves_are_kept(tree, pattern):
    wanted = {path: leaf for path, leaf in leaves(tree) if path and matches(path, [pattern])}
    found = {path: leaf for path, leaf in leaves(keep(tree, [pattern])) if path}
    assert {p: v for p, v in found.items() if matches(p, [pattern]) and v is not None} == wanted
    assert all(leaf in (None, {}, []) for path, leaf in found.items() if path not in wanted)
