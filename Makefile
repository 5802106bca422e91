# Every verb of the project; the work is in scripts/ and in the entry points.
.PHONY: install demo test check bundle lock bench suites sim soak mutants chaos failovers crash fuzz attack appliance man clean

install:
	@scripts/install

demo: install
	@scripts/install-java
	@.venv/bin/python -m scripts.demo

test: install
	@scripts/run-tests

check: install
	@scripts/check

# One file that installs dlog on a host without a network. VERSION=x gives the same code that name.
bundle: install
	@.venv/bin/python -m scripts.bundle $(if $(VERSION),--version $(VERSION))

# The versions and hashes of what a bundle holds, anew; needs the network.
lock: install
	@.venv/bin/python -m scripts.bundle.lock

bench: install
	@.venv/bin/python -m bench

# Test suites of other projects on dlog and on Apache Kafka: SUITE=kafka-python SERVER=dlog.
suites: install
	@.venv/bin/python -m tests.suites $(if $(SUITE),--suite $(SUITE)) $(if $(SERVER),--server $(SERVER))

# One run in virtual time, with its trace: SEED=n of one node, FLEET=n of a cluster.
sim: install
	@.venv/bin/python -m tests.simulation$(if $(FLEET),.fleet) --seed $(or $(FLEET),$(SEED))

# Many: WHAT=fleet, blackouts, raft or node; MINUTES=n or SEEDS=n; FIRST=n.
soak: install
	@.venv/bin/python -m tests.simulation.soak $(WHAT) --first $(or $(FIRST),1) \
		--minutes $(or $(MINUTES),0) --seeds $(or $(SEEDS),0)

# Every known hole, opened again: each must be seen.
mutants: install
	@.venv/bin/python -m tests.simulation.every_mutant

# Real nodes killed, paused, cut off, without disk: make chaos MINUTES=15 SEED=7 NODES=3 ONLY=kill.
chaos: install
	@.venv/bin/python -m tests.cluster --minutes $(or $(MINUTES),15) \
		--nodes $(or $(NODES),3) $(if $(SEED),--seed $(SEED)) --only "$(ONLY)"

# Every client through so many failovers, all at once: make failovers DLOG_FAILOVERS=10.
failovers: export DLOG_FAILOVERS ?= 10
failovers: install
	@scripts/run-tests -n0 -s --timeout $$(($$DLOG_FAILOVERS * 60 + 300)) tests/clients/test_failovers.py

# The long forms of tests/crash and tests/fuzz, as long as the environment says.
crash: export DLOG_KILL_ROUNDS ?= 50
crash: install
	@scripts/run-tests --timeout 3600 tests/crash

fuzz: export DLOG_FUZZ_SECONDS ?= 300
fuzz: install
	@scripts/run-tests -s --timeout $$(($$DLOG_FUZZ_SECONDS + 300)) tests/fuzz

# Every attack in its long form, some minutes, with a table of bounds: make attack ONLY=fetches.
attack: export DLOG_ATTACKS ?= long
attack: install
	@scripts/run-tests -n0 --timeout 1000 tests/attacks $(if $(ONLY),-k "$(ONLY)")

# The plays on real hosts in their long form, an hour, with the figures of each: make appliance ONLY=rolling.
appliance: export DLOG_APPLIANCE ?= long
appliance: export DLOG_APPLIANCE_RESULTS ?= $(CURDIR)/.cache/appliance.txt
appliance: install
	@scripts/run-tests -n0 -s --timeout 1500 tests/hosts $(if $(ONLY),-k "$(ONLY)")

# The manual page of dlogctl, from its parser.
man: install
	@.venv/bin/python -m dlogctl man > docs/man/dlogctl.1

clean:
	@rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
