# The words of everyday work; `make check` is what a change must pass. Run them in an environment with `.[dev]`.

.PHONY: check format lint type test doc bench

check: lint type test

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

# Needs `.[docs]`; the pages are then in site/.
doc:
	mkdocs build --strict

# About an hour on an otherwise idle machine; needs `.[bench]`. docs/performance.md says what is measured.
bench:
	python examples/benchmarks/throughput.py --out runs/speed
