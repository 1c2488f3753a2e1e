# The commands of this project. Each does its own set-up; a second run installs and builds nothing.
SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/pytest -q
# Compiled once and kept, whatever the environment says: each of the many programs that tests start would compile it all anew.
export PYTHONDONTWRITEBYTECODE :=
# The tests of a file stay together, in their order, on one worker: some share what is slow to start. Files come in the order of
# collection (tests/conftest.py), not those with many tests first.
PARALLEL := --dist loadfile --no-loadscope-reorder
# One more than cores: a good part of the suite is waiting for programs and clusters.
WORKERS := 3

.PHONY: help setup demo test test-fast lint format bench soak clean lock

help:            ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: .venv/.ready  ## make .venv with everything pinned by hash

.venv/.ready: requirements/dev.txt pyproject.toml tools/setup
	@tools/setup

demo: setup      ## start Muster here and see it work (KEEP=1 leaves it running)
	@$(BIN)/python tools/demo.py $(if $(KEEP),--keep)

test: setup      ## the whole suite, with a real Kubernetes (built on first use, about 5 minutes)
	@tools/agent-tools || echo "make test: the tests that run containers will be skipped (CI: fail)"
	@tools/kubernetes-assets > /dev/null || echo "make test: the tests marked kubernetes will be skipped (CI: fail)"
	@tools/client-programs > /dev/null || echo "make test: the tests with helm and old kubectls will be skipped (CI: fail)"
	$(PYTEST) -n $(WORKERS) $(PARALLEL)

test-fast: setup ## what needs neither Kubernetes nor patience: about 2 minutes
	$(PYTEST) -n $(WORKERS) $(PARALLEL) -m "not slow and not kubernetes and not soak"

lint: setup      ## ruff, mypy --strict, the layers of the house
	$(BIN)/ruff format --check src tests tools
	$(BIN)/ruff check src tests tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup    ## let ruff rewrite what it can
	$(BIN)/ruff format src tests tools
	$(BIN)/ruff check --fix src tests tools

bench: setup     ## every scenario, beside kube-scheduler, kube-apiserver and etcd in the same run (about an hour)
	@tools/kubernetes-assets > /dev/null
	$(BIN)/muster bench run all

soak: setup      ## fault and fuzz rounds at full count
	@tools/agent-tools || echo "make soak: the tests that run containers will be skipped"
	@tools/kubernetes-assets > /dev/null || echo "make soak: the tests marked kubernetes will be skipped"
	MUSTER_SOAK=1 $(PYTEST) -n 2 $(PARALLEL) --timeout=7200 -m "soak and not alone"
	MUSTER_SOAK=1 $(PYTEST) --timeout=7200 -m "soak and alone"

lock:            ## resolve requirements/*.in again and write the pins with their hashes (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  requirements/run.in -o requirements/run.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  requirements/run.in requirements/dev.in -o requirements/dev.txt
	for name in helm kubectl-old; do uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url requirements/$$name.in -o requirements/$$name.txt; done

clean:           ## remove what set-up and tests made here (the Kubernetes build in the cache directory stays)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build src/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
