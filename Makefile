# make demo    set up, then the main job on real images: grid, verified optima, seeds, report
# make test    set up, then the tests that need no cluster and no long series, in minutes
# make coverage  the tests of make test, with the share of lines that they reach
# make dist      the wheel and the source package, checked by twine
# make site      the pages of docs as a site, with all links checked, in site/
# make lowest  the tests of make test, with the lowest versions of all dependencies, in .venv-lowest
# make test-all  all but further cases on SLURM; those on SLURM where a cluster is up
# make test-slurm  all cases on SLURM, some of which only this runs
# make check   set up, then lint, types and test-all: what continuous integration runs
# make slurm-up    start a small SLURM cluster on this machine, for tests (root, Debian; tests/devcluster);
#                  CLUSTERS=3 starts three, for the tests to be done sooner
# make slurm-down  stop it
# make chaos       a sweep on that cluster while workers, nodes, daemons and commands are killed at random; then 200
#                  strikes at runs of commands, on this machine (STRIKES=N: fewer; SEED=N: others)
# make fuzz        2,000 random damages of a results folder, each looked at by status, verify-optimum and report; every
#                  command with closed and full streams, in odd locales, without a home (FUZZ=N: fewer)
# make pictures  those of README and docs, from the real program (Chromium, tmux; RESULTS=FOLDER with a report)
# make vega      the page's script of figures, ettsweep/report/vega.js, after an update of vl-convert
# make bench   set up, then the speed of the tool itself. Of those below, BENCH=--help prints the options:
# make bench-data  images/s that a core makes ready for training, and how many cores a GPU needs
# make bench-text  tokens/s that cores make of text, peak memory, and how fast blocks are found and read
# make bench-busy  steps of a small model on one thread and two, on cores that are idle or busy
# make bench-verdicts  simulated sweeps: are verdicts as sure as they say? (BENCH="--sweeps 100 --only bowl")
# make bench-compare  simulated pairs of lists: do the intervals of `compare` hold as often as they say? (BENCH="--pairs 500 --only heavy")
# make bench-search  simulated searches: what finds and verifies an optimum with the fewest runs? (BENCH="--sweeps 20 --only bowl")
# make bench-ensemble  runs alone and in an ensemble: steps, whole grids (BENCH="--sizes 8 --runs 18")
# make bench-beside  100 runs through this tool, submitit, Optuna and Ray Tune (BENCH="--runs 8 --ray-python PYTHON --json FILE")
# make bench-vit   a training step of vit-b16 beside timm's, on the GPU if there is one (BENCH="--json FILE")
# make bench-encdec  a training step of bart-large beside Hugging Face's MBart; on a GPU, r2c2 too (BENCH="--json FILE")
# make bench-gpt   a training step of gpt2's shape beside transformers' GPT-2 and a plain loop over torch modules (BENCH="--json FILE")
# make bench-all-gpu  all there is to know on a GPU, held to targets (OUT=FILE, BENCH="--minutes 9"; BENCH=--small tries it on a CPU)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RESULTS ?= results
DEVCLUSTER := $(or $(ETTSWEEP_DEVCLUSTER),/tmp/ettsweep-devcluster)
CLUSTERS ?= 1
PROCESSES ?= auto
QUICK := -m 'not (cluster or statistics or slow)'
BENCHES := $(addprefix bench-,data text busy verdicts compare search ensemble beside vit encdec gpt)

.PHONY: help install demo test coverage dist site lowest test-all test-slurm examples lint check slurm-up slurm-down chaos fuzz pictures vega clean
.PHONY: bench bench-all-gpu $(BENCHES)

help:
	@sed -n 's/^# //p' Makefile

install: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "ettsweep needs Python 3.11 or later; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "== installing into $(VENV) (once; torch is large, give it a few minutes)"
	@$(PYTHON) -m venv $(VENV) || { echo "python has no venv: on Debian, apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)
	@echo "== installed"

demo: $(READY)
	@echo "== 1/4 grid: the sweep vit-digits, a small Vision Transformer on scikit-learn's digits under four strategies"
	@$(BIN)/ettsweep grid --model vit-digits --follow --results $(RESULTS)
	@echo "== 2/4 verify-optimum: by how much could a neighbour be better? Climb, and race, until it is within the margin"
	@$(BIN)/ettsweep verify-optimum --sweep vit-digits --follow --results $(RESULTS)
	@echo "== 3/4 seeds: each optimum again, over three fresh seeds"
	@$(BIN)/ettsweep seeds --sweep vit-digits --count 3 --follow --results $(RESULTS) > /dev/null
	@echo "== 4/4 report: tables, figures, one page"
	@$(BIN)/ettsweep report --results $(RESULTS)
	@$(BIN)/ettsweep sweeps --results $(RESULTS)
	@echo "== done: open $(RESULTS)/report/report.html"

test: $(READY)
	@echo "== tests"
	@$(BIN)/python -m pytest $(QUICK) --numprocesses $(PROCESSES)

coverage: $(READY)
	@echo "== tests, with coverage"
	@$(BIN)/python -m pytest $(QUICK) --numprocesses $(PROCESSES) --cov=ettsweep --cov-report=term:skip-covered

dist: $(READY)
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/python -m twine check --strict dist/*

site:
	@$(PYTHON) -m venv .venv-site
	@.venv-site/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.6'
	@.venv-site/bin/python -m mkdocs build --strict

lowest: LOWEST := .venv-lowest/bin/python
lowest:
	@echo "== tests, lowest dependencies"
	@$(PYTHON) -m venv .venv-lowest
	@$(LOWEST) -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST) -m uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --editable '.[dev]'
	@$(LOWEST) -m pytest $(QUICK) --numprocesses $(PROCESSES)

test-all: $(READY)
	@echo "== all tests"
	@$(BIN)/python -m pytest -m 'not (cluster and slow)' --numprocesses $(PROCESSES)

test-slurm: $(READY)
	@echo "== all tests on SLURM"
	@$(BIN)/python -m pytest -m cluster --numprocesses $(PROCESSES)

lint: $(READY)
	@echo "== lint and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check: lint test-all

examples: $(READY)
	@echo "== examples"
	@$(BIN)/python -m pytest tests/test_examples.py --numprocesses $(PROCESSES)

slurm-up:
	@tests/devcluster/up.sh $(DEVCLUSTER)
	@for n in $$(seq 2 $(CLUSTERS)); do \
		ETTSWEEP_DEVCLUSTER_PORT=$$((26700 + 100 * n)) tests/devcluster/up.sh $(DEVCLUSTER)-$$n || exit; done

slurm-down:
	@for folder in $(DEVCLUSTER) $(DEVCLUSTER)-[2-9]; do [ ! -d $$folder ] || tests/devcluster/down.sh $$folder; done

chaos: $(READY)
	@PYTHONPATH=.:tests $(BIN)/python -m support.chaos $(CHAOS)
	@STRIKES=$(or $(STRIKES),200) $(BIN)/python -m pytest -s tests/worker/test_struck_commands.py

fuzz: $(READY)
	@FUZZ=$(or $(FUZZ),2000) $(BIN)/python -m pytest tests/test_fuzz.py --numprocesses $(PROCESSES)

pictures: $(READY)
	@PYTHONPATH=.:tests $(BIN)/python -m bench.pictures $(RESULTS)

vega: $(READY)
	@$(BIN)/python -c 'import vl_convert; print(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), end="")' \
		> ettsweep/report/vega.js

bench: $(READY)
	@$(BIN)/python -m bench.tool

bench-all-gpu: $(READY)
	@$(BIN)/python -m bench.gpu $(if $(OUT),--out $(OUT)) $(BENCH)

$(BENCHES): bench-%: $(READY)
	@PYTHONPATH=.:tests $(BIN)/python -m bench.$* $(BENCH)

clean:
	rm -rf $(VENV) .venv-lowest .venv-site dist site .mypy_cache .pytest_cache .ruff_cache
