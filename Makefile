# Every target does its own set-up (scripts/setup) and can be run first on a fresh machine.
# `build` and `install` install no package.
.DEFAULT_GOAL := build
.PHONY: help setup setup-build setup-demo setup-media setup-test build install uninstall site wheel demo media-demo check test soak bench bench-wheel lab lab-stale fuzz lint fmt clean

CARGO ?= cargo
PY := .venv/bin/python
RUN_TESTS := env -u MAKEFLAGS -u ENKAKU_BIN scripts/run-tests
export ENKAKU_BIN := $(CURDIR)/target/release/enkaku

help:           ## what can be made
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup:          ## install what is missing for everything (packages.txt, .venv)
	@scripts/setup lab

setup-build:
	@scripts/setup build

setup-demo:
	@scripts/setup demo

setup-media:
	@scripts/setup media

setup-test:
	@scripts/setup test

build: setup-build ## the binary, target/release/enkaku; without root
	$(CARGO) build --release --locked --package enkaku

# Without cargo, so that root need not have it. DESTDIR is a folder that stands for /.
PREFIX ?= /usr/local
install:        ## the binary, units and an example: PREFIX=/usr/local DESTDIR=
	@ENKAKU_BIN="$(ENKAKU_BIN)" scripts/install "$(PREFIX)" "$(DESTDIR)"

uninstall:      ## remove what `make install` with the same PREFIX and DESTDIR has put there
	@scripts/install --remove "$(PREFIX)" "$(DESTDIR)"

site:           ## the docs as one site of static files, target/site/html (MkDocs, by pip into target/site)
	@scripts/site

wheel: setup-build ## the Python package, target/wheels/enkaku-*.whl (maturin, by pip into target/wheels)
	@scripts/wheel

demo: setup-demo build ## a file over 1 Gbit/s, RTT 50 ms and back: plain TCP, stock iSCSI, enkaku
	$(PY) -m enkaku_lab demo

# WITH="--rtt 100ms --loss 1e-4 film.mp4" for another line, and videos of one's own.
WITH ?=
media-demo: setup-media build ## a disk at home, a page of its videos and an emulated line between: the page's address
	@$(ENKAKU_BIN) media demo $(WITH)

# ONLY="randread d32" for the rows with these words; BENCH_PEER="spdk:/path/to/iscsi_tgt" for one more target.
ONLY ?=
bench: setup-demo build ## 4 KiB and 256 KiB on loopback: tgt and enkaku, three clients, and what a socket allows
	$(CARGO) build --release --locked --package enkaku-wanlab --example limit
	$(PY) -m enkaku_lab bench --only "$(ONLY)"

bench-wheel: setup-demo build wheel ## volumes in Python beside `enkaku bench`, 256 KiB at a time
	$(PY) -m enkaku_lab wheel-bench

# LAB=--quick for a quarter of an hour instead; NAMES for some of them (python -m enkaku_lab list).
LAB ?=
NAMES ?= all
lab: setup build ## the papers' experiments: every figure and the reports (hours, resumable)
	$(PY) -m enkaku_lab run $(LAB) $(NAMES)

lab-stale: setup-test ## committed figures that are older than the code that they show
	$(PY) -m enkaku_lab stale

# The tests share one build, Cargo's dev profile, so they do not need `build`. WORDS="cache sim": only
# those with one of the words in their name.
WORDS ?=
check: setup-test ## unit tests, 200 simulated seeds, the command line: before a commit
	@$(RUN_TESTS) check $(WORDS)

test: setup     ## unit, property and simulation tests, and black-box tests with real peers
	@$(RUN_TESTS) test $(WORDS)

# TIME seconds of seeds, SEEDS at a time, beside ROUNDS of each fault under data bases.
soak: setup     ## the same by the hour: TIME=3600 SEEDS=20000 ROUNDS=40
	@TIME=$(TIME) SEEDS=$(SEEDS) ROUNDS=$(ROUNDS) $(RUN_TESTS) soak

# Inputs that are found are kept in fuzz/work; only chosen ones belong in fuzz/corpus.
fuzz: TIME ?= 60
FUZZ ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
fuzz:           ## hostile input for TIME seconds a target (needs cargo-fuzz)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || \
	    { echo "fuzz: cargo-fuzz is missing (cargo install cargo-fuzz)"; exit 1; }
	@for target in $(FUZZ); do mkdir -p fuzz/work/$$target; \
	    RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --sanitizer none $$target \
	        fuzz/work/$$target fuzz/corpus/$$target \
	        -- -max_total_time=$(TIME) -timeout=10 -rss_limit_mb=2048 -max_len=8192 || exit 1; \
	done

lint: setup-test ## format, clippy, docs, tidiness, licences, Python syntax
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	$(CARGO) test --quiet --locked -p xtask
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) deny --log-level error check bans licenses sources; \
	else echo "lint: cargo-deny is not installed, licences were not checked (cargo install cargo-deny)"; fi
	$(PY) -m compileall -q lab tests

fmt:            ## format the Rust code
	$(CARGO) fmt --all

clean:          ## remove everything that was made
	rm -rf target out .venv
