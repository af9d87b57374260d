# make help lists the targets. Everything is installed into .venv; a second run installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
PYTEST_ARGS ?=
TEST_PROCESSES ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check protos bench bench-peers lock clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.installed-demo ## Set up, make the demo models, start the system, search ten questions, stop it.
	$(BIN)/twostage demo

test: $(VENV)/.installed-test ## Set up, then run the tests; PYTEST_ARGS="-k word" chooses among them.
	TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile $(PYTEST_ARGS)

check: $(VENV)/.installed-test ## Format, lint, types, import rules, docstrings of tests, contracts.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/interrogate --quiet --ignore-module --whitelist-regex '^test_' tests
	$(BIN)/buf lint protos
	@base=$$(git merge-base HEAD main 2>/dev/null); \
	if [ -z "$$base" ]; then echo "buf breaking: skipped, there is no branch main to compare with"; \
	else set -x; $(BIN)/buf breaking protos --against ".git#ref=$$base,subdir=protos"; fi
	@made=$$(mktemp -d) && trap 'rm -rf "$$made"' EXIT && PYTHON=$(CURDIR)/$(BIN)/python sh protos/generate.sh "$$made" \
	&& diff -r --exclude='*.proto' --exclude=__pycache__ "$$made/retrieval" protos/retrieval \
	&& echo "generated modules are those of the protos" \
	|| { echo "the generated modules are not those of the protos: run make protos"; exit 1; }

protos: $(VENV)/.installed-test ## Generate the Python modules beside the protos.
	PYTHON=$(CURDIR)/$(BIN)/python sh protos/generate.sh

bench: $(VENV)/.installed-test ## Measure; see benchmarks/README.md.
	for script in stages tracing overhead store store_words qdrant_calls query_cache precision simulate export_full_size; do $(BIN)/python "benchmarks/$$script.py" || exit 1; done

bench-peers: $(VENV)/.installed-test ## Measure our servers beside other people's; see docs/benchmarks.md.
	$(BIN)/python -m benchmarks.peers

lock: $(VENV)/.installed-test ## Resolve requirements/*.txt again, with hashes, as the images install them.
	UV=$(BIN)/uv sh requirements/lock.sh

clean: ## Remove .venv and caches; keeps .twostage, where models and documents are.
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, $(PYTHON) is %d.%d; name another one: make $(MAKECMDGOALS) PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[cpu,demo]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[cpu,demo,evaluation,export,dev]'
	@touch $@ $(VENV)/.installed-demo
