# Two commands on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
# Each makes its own environment in .venv from the pinned versions in constraints.txt.
#
# Python is the newest supported one on the path; `make demo PYTHON=/a/python3` takes another. Each is started, because
# version managers put names on the path of versions that are not installed.
NAMES := python3.14 python3.13 python3.12 python3.11 python3 python
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
FIND := for each in $(NAMES); do if $$each -c '$(SUPPORTED)' 2>/dev/null; then echo $$each; break; fi; done
NONE := GraphPipe needs Python 3.11 to 3.14, and the path has none of them: install it (Debian and Ubuntu: apt install \
  python3 python3-venv; Fedora: dnf install python3; macOS: brew install python), or name it: make demo PYTHON=/a/python3
PYTHON ?= $(or $(shell $(FIND)),$(error $(NONE)))
BIN := .venv/bin
DEMO_READY := .venv/demo-ready
READY := .venv/ready
# `make demo TORCH_INDEX=URL` takes torch from another index, for example from one of builds without CUDA.
TORCH_INDEX ?=
ENVIRONMENT := tests/support/make_environment.py

.PHONY: demo test test-slow test-portable matrix explore lint format docs bench mutate zoo-graphs notebook clean

demo: $(DEMO_READY)
	$(BIN)/graphpipe demo

# Four at a time: much of a test is waiting for processes to start. A file's tests stay together, for what they share, and
# the longest files come first (tests/conftest.py).
test: $(READY)
	$(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 5

# Tests that take long, and whose kind others cover: more hosts, larger models, further families.
test-slow: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m slow

# The tests of random graphs with other examples at every call; those of `make test` are always the same.
explore: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist loadfile --hypothesis-profile explore -m hypothesis

# The tests in an environment for each Python, torch and choice of other versions (tests/support/matrix): hours. Results
# are in bench/results/matrix.json. `make matrix ROWS=--short` tries the newest torch with a few tests.
ROWS ?=
matrix: $(READY)
	$(BIN)/python tests/support/matrix/run_matrix.py $(ROWS)

# Launch, training and the doctor without what only Linux has, as on macOS.
test-portable: $(READY)
	PYTHONPATH=tests/support/without_linux $(BIN)/pytest --numprocesses 2 --dist loadfile tests/launch tests/training tests/doctor

# Both projects are checked at the same time: pyright uses one core.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright & package=$$!; $(BIN)/pyright --project tests; tests=$$?; wait $$package && exit $$tests

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation site, warnings as errors, into build/site.
docs: $(READY)
	$(BIN)/mkdocs build --strict --site-dir build/site

bench: $(READY)
	$(BIN)/python -m bench

# One benchmark: `make bench-figure6`, `make bench-table1`, ... `python -m bench --help` lists them.
bench-%: $(READY)
	$(BIN)/python -m bench $*

# Wrong lines that the tests must notice, in parts that go on where they ended: `make mutate`, `make mutate PART=sharding`,
# `make mutate PART='simulator --sample 150 --seed 0'`.
mutate: $(READY)
	$(BIN)/python $(ENVIRONMENT) mutate
	$(BIN)/python tests/support/mutate.py $(PART)

# The graphs of the zoo that come with the package: again after a change of the zoo or of the capture.
zoo-graphs: $(READY)
	$(BIN)/python tests/support/write_zoo_graphs.py

# The tutorial's notebook with its outputs: again after a change of it.
notebook: $(READY)
	PYTHONPATH=tests/support $(BIN)/python tests/support/write_notebook.py

# An environment is complete only once its file exists, so an interrupted install is simply redone. The demo needs a
# third of the packages that the tests need.
$(DEMO_READY): pyproject.toml constraints.txt
	$(PYTHON) $(ENVIRONMENT) report --torch-index '$(TORCH_INDEX)'
	touch $@

$(READY): $(DEMO_READY)
	$(BIN)/python $(ENVIRONMENT) dev
	touch $@

clean:
	rm -rf .venv runs
