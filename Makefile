# Every verb of the project; the work is in scripts/ and in the entry points.
.PHONY: install demo test check bench sim soak crash clean

install:
	@scripts/install

demo: install
	@.venv/bin/python -m scripts.demo

test: install
	@scripts/run-tests

check: install
	@scripts/check

bench: install
	@.venv/bin/python -m bench

sim: install
	@.venv/bin/python -m tests.simulation --seed $(SEED)

soak: install
	@.venv/bin/python -m tests.simulation --seeds $(or $(SEEDS),2000) --jobs 2

clean:
	@rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
