# Everyday commands. `make` lists them; PYTHON and FLAGS may be given: make test FLAGS="-x -k relay"
PYTHON ?= python
FLAGS ?=
SEED ?= $(shell date +%s)

.PHONY: help setup test test-fast lint types docs sim soak fuzz bench-quick demo clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install this checkout with all that tests need, into the active virtual environment
	$(PYTHON) -m pip install -c constraints.txt -e '.[dev]'

test: ## the whole suite, in two processes; what needs root is skipped without it
	$(PYTHON) -m pytest $(FLAGS)

test-fast: ## a minute or two: the sans-I/O cores, the protocol and the planner; no daemons, no emulated networks
	$(PYTHON) -m pytest -n 2 -m 'not root and not smollm and not vllm' tests/test_purity.py tests/protocol tests/membership \
	  tests/swarm tests/net tests/store tests/sim/test_sim_clock.py tests/sim/test_sim_faults.py $(FLAGS)

lint: ## form: ruff's rules, and formatting
	ruff check .
	ruff format --check .

types: ## mypy --strict
	mypy

docs: ## the pages, built from docs/ where mkdocs is set up
	@if [ -f mkdocs.yml ]; then $(PYTHON) -m mkdocs build --strict; else echo "docs/ is plain Markdown: nothing to build"; fi

sim: ## 300 seeds of the whole swarm in virtual time, with faults and liars
	$(PYTHON) -m p2psync.sim --seeds 0:300

soak: ## 50 kills of real daemons at seeded moments, every bit checked after each
	$(PYTHON) -m tests.daemons.soak --kills 50 --seed $(SEED)

fuzz: ## hostile chunks and manifests, then damage to disks
	$(PYTHON) -m tests.delta.fuzz --inputs 100000 --seed $(SEED) --processes 2
	$(PYTHON) -m tests.damage.fuzz_damage --seeds 0:100

bench-quick: ## short benchmarks: they print, and judge nothing
	$(PYTHON) -m p2psync bench codec --quick
	@why=$$($(PYTHON) -c "from p2psync.topology.emulator import why_not; print(why_not() or '')"); \
	if [ -z "$$why" ]; then $(PYTHON) -m p2psync bench swarm --quick; else echo "bench swarm is left out: $$why"; fi

demo: ## the main job on this machine: training, four actors, one killed, one joining late
	$(PYTHON) -m p2psync demo

clean: ## remove caches and builds; stores and figures stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
