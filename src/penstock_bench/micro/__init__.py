"""Small benchmarks, each one table from one run: `python -m penstock_bench.micro transfer`.

In the order of a run: `__main__` (options), `transfer` (the sections and their rows), `servers` (who answers),
`measure` (samples in turn, each in a process of its own), `probe` (inside that process: clock, CPU, memory),
`workloads` (what is done under the clock), `subjects` (by whom), `report` (values), `table`, `expectations`.
"""
