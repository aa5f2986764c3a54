"""Small benchmarks, each one table from one run: `python -m penstock_bench.micro transfer`, or `data`.

In the order of a run: `__main__` (options), `transfer` (the sections and their rows), `servers` (who answers),
`measure` (samples in turn, each in a process of its own), `probe` (inside that process: clock, CPU, memory),
`workloads` (what is done under the clock), `subjects` (by whom), `report` (values), `table`, `expectations`.

`data` has its own, named alike: `data`, `data_rows`, `data_sections`, `data_workloads` and `listing_workloads`,
`datasets` and `listers` for `subjects`, `data_table`, `data_expectations`; `list_server`, which answers listings;
and `nursery`, which has torch imported when a sample begins.
"""
