# Two commands do everything on a machine with git, make, Python >= 3.11 and pip:
#   make demo    what the tool does, on a real recorded session
#   make test    all checks
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n 2

INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: demo test clean

demo: $(VENV)/.installed
	$(VENV)/bin/agentload run

test: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -q $(PYTEST_ARGS)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("error: agentload needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12 ..." % v[:2])'
	@echo "making $(VENV) with $$($(PYTHON) --version); the first installation takes a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	@$(INSTALL) .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml constraints.txt
	@$(INSTALL) '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
