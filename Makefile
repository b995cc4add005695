# The menu of the project: `make help`. Each entry installs what it needs, and prints that.

.DEFAULT_GOAL := help
.PHONY: help setup run libs package check test build cargo-test lint icount interop preload cpython \
	conformance bench lab attack sim soak fuzz clean

# The packages that are linted and tested: the whole workspace if Rust is at least 1.91, which the
# lab's peers need; otherwise cargo's default members, which leave out the lab.
PACKAGES = $(shell rustc --version | \
	awk '{ split($$2, version, "."); if (version[1] > 1 || version[2] >= 91) print "--workspace" }')

help: ## Print this menu.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the missing packages that run, test and bench need.
	@scripts/setup build test bench

run: ## Build millrace and start its demo: a reverse proxy before a small built-in site.
	@scripts/setup build
	@echo 'building; the first time takes up to ten minutes on two cores'
	@cargo run --quiet --release -p millrace -- demo

libs: ## Build libiolite, libmrsplice, libuselect for C; PREFIX=DIR installs them, below DESTDIR.
	@scripts/setup build
# Only a PREFIX of this command line counts; make passes it on in the environment.
	@scripts/libs $(if $(filter command,$(origin PREFIX)),"$$PREFIX")

package: ## Package the libraries for crates.io and the crates they need, and build each package.
	@scripts/setup build
	@scripts/package

check: ## In two minutes: format, structure, clippy, unit tests, a few seeds of each scenario.
	@scripts/step format cargo fmt --all --check
	@scripts/step structure cargo xtask tidy
	@scripts/step clippy cargo clippy --quiet $(PACKAGES) --all-targets -- -D warnings
	@scripts/step 'unit tests' cargo test --quiet $(PACKAGES) --lib --bins
	@SEEDS=2 scripts/step 'simulated scenarios' \
		cargo test --quiet $(PACKAGES) --test scenarios -- simulated
	@SEEDS=40 scripts/step 'random scenarios' cargo test --quiet $(PACKAGES) --test sim -- random_

test: ## Set up, lint, build, and run every test: unit, scenarios, corpus, icount, interop, preload.
	@scripts/step 'set up' scripts/setup build test
	@$(MAKE) --no-print-directory lint
	@scripts/step build $(MAKE) --no-print-directory build
# The linker of the release profile uses one core.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target cargo-test icount
	@scripts/step interop tests/interop/run
	@scripts/step preload tests/preload/run

# Tests, and the programs and libraries that they run.
build:
	cargo test --quiet $(PACKAGES) --no-run
	cargo build --quiet $(PACKAGES)

cargo-test:
	@scripts/step 'cargo test' cargo test --quiet $(PACKAGES)
# Needs valgrind, so `cargo test` leaves it out.
	@scripts/step 'growth' cargo test --quiet $(PACKAGES) --test growth

lint: ## Formatting, clippy and rustdoc, each warning an error; structure, language, documents.
	@scripts/setup build
	@scripts/step format cargo fmt --all --check
	@scripts/step structure cargo xtask tidy
	@scripts/step transitions cargo xtask transitions
	@scripts/step 'planted faults apply' tests/faults/play --check
	@scripts/step clippy cargo clippy --quiet $(PACKAGES) --all-targets -- -D warnings
# The documentation is for developers of millrace, so it contains and links to private items.
	@RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links' scripts/step rustdoc \
		cargo doc --quiet $(PACKAGES) --no-deps --document-private-items

icount: ## Compare instructions per request with the committed baseline; ACCEPT=1 rewrites it.
	@scripts/setup build test
	@scripts/step icount \
		cargo bench --quiet -p millrace-tests --bench icount -- $(if $(ACCEPT),--accept)

interop: ## Run real programs through millrace; NAMES="chromium git" selects some.
	@scripts/setup build test
	cargo build --quiet $(PACKAGES)
	tests/interop/run $(NAMES)

preload: ## Run unmodified programs under the preload of uselect; NAMES="lighttpd redis".
	@scripts/setup build test
	cargo build --quiet $(PACKAGES)
	tests/preload/run $(NAMES)

cpython: ## Run CPython's own tests of waiting and sockets, with the preload and without.
	@scripts/setup build test
	scripts/cpython-tests $(NAMES)

conformance: ## Run the public HTTP caching suite: SUBJECTS="boost forward nginx" OPTIONS="...".
	@scripts/setup build conformance $(if $(filter-out boost forward,$(SUBJECTS)),bench)
	python3 -B -m unittest discover -s tests/conformance
	cargo build --quiet -p millrace
	tests/conformance/run $(SUBJECTS) --options="$(OPTIONS)"

bench: ## Measure beside peers: CASES="reverse-miss-8k idle" REPS=5 SECS=1. Miss ratios: make lab.
	@scripts/bench

lab: ## Compare miss ratios: OBJECTS=100000 TRACE="Zipf 0.8"; or FIGURE="kernel-support-fig7".
ifdef FIGURE
	@scripts/setup build lab
	cargo build --quiet --release -p millrace
	cargo build --quiet --release -p millrace-splice --example misses
	cargo build --quiet --release -p uselectd
	$(if $(wildcard crates/uselect/uselect-preload),cargo build --quiet --release -p uselect-preload)
	MILLRACE=$(or $(MILLRACE),$(abspath $(or $(CARGO_TARGET_DIR),target))/release/millrace) \
		peers/figure "$(FIGURE)" --reps $(or $(REPS),5) --secs $(or $(SECS),0.3) \
		$(if $(SIZES),--sizes $(SIZES)) $(if $(RATES),--rates $(RATES)) \
		$(if $(CONNECTIONS),--connections $(CONNECTIONS)) $(if $(LOADS),--loads "$(LOADS)") \
		$(if $(PROGRAMS),--programs $(PROGRAMS)) \
		$(if $(MODE),--mode $(MODE)) $(if $(WRITE),--write) \
		--command 'make lab FIGURE="$(FIGURE)" REPS=$(or $(REPS),5)$(if $(MODE), MODE=$(MODE))$(if \
			$(CONNECTIONS), CONNECTIONS=$(CONNECTIONS))$(if $(LOADS), LOADS="$(LOADS)")$(if \
			$(PROGRAMS), PROGRAMS=$(PROGRAMS))'
else
	@scripts/setup build
	cargo run --quiet --release -p millrace-lab -- eviction $(or $(OBJECTS),100000) $(if $(TRACE),"$(TRACE)")
endif

attack: ## Send hostile messages and try cache poisoning, on both engines: MUTANTS=100000 SEED=1.
	@scripts/setup build
	cargo build --quiet -p millrace
	MUTANTS=$(or $(MUTANTS),100000) SEED=$(or $(SEED),1) scripts/attack

sim: ## Play random scenarios: SEEDS=2000 FIRST=0, or SEED=n for one with its event log.
	@scripts/setup build
	SEEDS=$(or $(SEEDS),2000) cargo test --quiet -p millrace-tests --test sim random_ \
		-- --nocapture

soak: ## Run many more of each: SEEDS=5000 RANDOM_SEEDS=200000 MUTANTS=1000000 DISK_KILLS=200.
	@scripts/setup build
	cargo build --quiet -p millrace
	SEEDS=$(or $(SEEDS),5000) cargo test -p millrace-tests --test scenarios
	SEEDS=$(or $(RANDOM_SEEDS),200000) cargo test --quiet -p millrace-tests --test sim \
		random_ -- --nocapture
	tests/faults/play
	REQUESTS=$(or $(REQUESTS),1000000) cargo test --quiet -p millrace-tests --test pipelining
	MUTANTS=$(or $(MUTANTS),1000000) cargo test -p millrace-tests --test corpus --test poison \
		--test traversal
	SEEDS=20000 TRANSFERS=$(or $(TRANSFERS),10000) cargo test --quiet -p millrace-splice
	DISK_SEEDS=$(or $(DISK_SEEDS),20000) cargo test --quiet -p millrace-disk --test disk_seeds
	DISK_KILLS=$(or $(DISK_KILLS),200) cargo test --quiet -p millrace-disk --test disk_kill
	COUNT=$(or $(DISK_KILLS),200) scripts/disk-kill
	scripts/renew-under-load
	KILLS=5000 cargo test --quiet -p iolite --test processes
	HAND_OVERS=100000 cargo test --quiet -p iolite --test later_writes
	GAMES=500 cargo test --quiet -p iolite --test model
	GAMES=200 cargo test --quiet -p iolited --test model
	OPERATIONS=1000000 cargo test --quiet -p iolited --test concurrent --test streams
	KILLS=10000 cargo test --quiet -p iolited --test kills
	scripts/sanitize
	KILLS=50 tests/interop/run test_acme
	CHANGES=100000 tests/interop/run test_serve.Changes test_serve.Places
	@scripts/setup test applications
	tests/interop/run test_applications
# Namespaces that lose packets need root.
	@if [ "$$(id -u)" = 0 ]; then \
		for engine in auto epoll; do \
			scripts/splice-stress --proxy --engine $$engine --transfers 150 || exit 1; \
			scripts/splice-stress --proxy --cache --engine $$engine --transfers 100 || exit 1; \
		done; \
		scripts/splice-stress --transfers $(or $(LOSSY),1250) || exit 1; \
	else echo 'skip: splice-stress: needs root for network namespaces'; fi
	@scripts/setup scan
	scripts/tls-scan

fuzz: ## Run every fuzz target for SECONDS=60 each.
	@scripts/setup fuzz
	@scripts/fuzz $(or $(SECONDS),60)

clean: ## Remove what was built.
	cargo clean --quiet
	rm -rf fuzz/target tests/conformance/node_modules
