# The words of everyday work; `make check` is what a change must pass. Run them in an environment with `.[dev]`.

.PHONY: check check-all format lint type test bench

check: lint type test

# Also the tables of which `test` has the pairs; some minutes.
check-all: lint type
	pytest -m "product or not product"

format:
	ruff check --fix .
	ruff format .

lint:
	ruff check .
	ruff format --check .

type:
	mypy --strict src

test:
	pytest

# About an hour on an otherwise idle machine; needs `.[bench]`. docs/performance.md says what is measured.
bench:
	python examples/benchmarks/throughput.py --out runs/speed
