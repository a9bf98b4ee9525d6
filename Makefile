# Two commands do everything: `make run` and `make test`. The rest is for people who change the code.
PYTHON ?= python3
BIN := .venv/bin
TESTS ?= tests
# Test files run side by side, so that one compiles a design while another simulates.
JOBS ?= 2
OUT := out/digits-cnn
# Epochs that 'make run' trains in the model, and mini-batches that it simulates behind them.
EPOCHS ?= 4
STEPS ?= 4

.PHONY: run test test-full train-full lint format lock bench bench-resnet50 site clean setup setup-test

# Trains to the end in the bit-exact model, goes on from there in simulated hardware with every byte compared, and
# trains the same in PyTorch. Small enough to be simulated while one waits; the defaults are larger.
run: setup
	@$(BIN)/fpgapipe doctor --brief
	@$(BIN)/fpgapipe build --board boards/u280.yaml --devices 2 --array 16x32 --batch 32 -o $(OUT)
	@$(BIN)/fpgapipe run $(OUT) --backend model --epochs $(EPOCHS)
	@$(BIN)/fpgapipe run $(OUT) --backend sim --from model --more $(STEPS) --learning-rate 0.001 --check model
	@if $(BIN)/python -c "import torch" 2>/dev/null; \
	then $(BIN)/fpgapipe run $(OUT) --backend torch --epochs $(EPOCHS); \
	else echo "PyTorch is not installed, so it is not run beside ('make setup-test' installs it)"; fi
	@$(BIN)/fpgapipe report $(OUT) --measure

# The whole training of digits-cnn on two and on four simulated devices, beside model and PyTorch: an hour or so.
train-full: setup-test
	$(BIN)/python bench/bench_training.py --simulate --rows 16 --cols 16

test: lint
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow" $(TESTS)

test-full: lint
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup-test
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# ResNet-50 and VGG-16 in RTL, byte for byte: an hour or more, most of it simulation.
bench-resnet50: setup-test
	FPGAPIPE_SIMULATE=fast $(BIN)/python bench/bench_resnet50.py

bench: setup-test
	@for file in bench/bench_*.py; do $(BIN)/python $$file || exit 1; done

# The pages as a site that needs no server and loads nothing from one; broken links are errors.
site:
	@$(PYTHON) tools/bootstrap.py --extra docs
	@$(BIN)/python -m mkdocs build --strict --quiet
	@echo "written to out/site/index.html"

# Renews the pins within the ranges of pyproject.toml (needs uv). torch stays where its CPU build is easy to
# have; the packages of its CUDA build are left out, so that either build of torch satisfies the pins.
lock:
	echo "torch==2.13.0" | uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-header \
	  --no-annotate --constraints - --upgrade pyproject.toml \
	  | grep -vE '^(nvidia|cuda|triton)' | sed 's/^\(torch==[0-9.]*\).*/\1/' | uniq > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean:
	rm -rf .venv build dist out .fpgapipe-cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

setup:
	@command -v $(PYTHON) >/dev/null || { echo "fpgapipe: python3 is missing: apt install python3" >&2; exit 1; }
	@$(PYTHON) tools/bootstrap.py --extra data --extra fast

setup-test:
	@command -v $(PYTHON) >/dev/null || { echo "fpgapipe: python3 is missing: apt install python3" >&2; exit 1; }
	@$(PYTHON) tools/bootstrap.py --extra test
