"""The benchmark suite. It imports `penstock`; `penstock` never imports it."""
