# The words of everyday work; `make check` is what a change must pass. Run them in an environment with `.[dev]`.

.PHONY: check check-all format lint type test doc bench kills soak mutation package

check: lint type test

# Also the tables of which `test` has the pairs, and what starts Ray or several ranks; some minutes.
check-all: lint type
	pytest -m "not cluster" --hypothesis-profile=ci
	pytest -m cluster -n 0

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

# A quarter of an hour: kills runs at random moments and compares the bits with the unbroken one. Goes on where it stopped.
kills:
	python tests/kills.py --kills 200 --folder runs/kills

# An hour on two cores: trains with a disturbance every minute, beside the same training left alone.
soak:
	python examples/benchmarks/soak.py --out runs/soak

# Some hours; needs mutmut (`pip install mutmut`): changes the equations' code in one place at a time and expects the tests to fail. Goes on where it stopped.
mutation:
	mutmut run
	mutmut results

# Needs `pip install build`. Wheel and sdist into dist/, then the sdist's tests, without its source, against the wheel.
package:
	rm -rf dist && python -m build
	set -e; d=$$(mktemp -d); python -m venv $$d/venv; mkdir $$d/tests; \
	tar -xzf dist/*.tar.gz -C $$d/tests --strip-components 1; rm -r $$d/tests/src; \
	$$d/venv/bin/pip install --quiet "$$(ls dist/*.whl)[dev]"; cd $$d/tests; $$d/venv/bin/pytest; rm -r $$d
