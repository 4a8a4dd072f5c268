# make, make demo and make test: see README.md. Everything that is built lies in target/ and build/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
PACKAGES := $(shell sed -e 's/\#.*//' .ci/debian-packages)
# What the demo and all tests are built from: the workspace as one, with the features that its tests ask for, so that no crate is compiled
# twice (swtpm-tests/src/programs.rs has the same).
PROGRAMS := --workspace --locked --bins --test=documents
DEBUG := $(or $(CARGO_TARGET_DIR),target)/debug
# An emulated VM waits for much of its boot: three keep two processors busy.
VM_TEST_THREADS ?= 3
# So do most other tests: for a disk, a timeout, another process.
TEST_THREADS ?= 6

# All that the packages name, but the one that makes the report of the others.
BENCHES ?= $(filter-out report,$(shell sed -n '/^\[\[bench\]\]/{n;s/^name = "\(.*\)"/\1/p}' attest/Cargo.toml gateway/Cargo.toml))

.PHONY: help deps crates packages toolchain build programs check deny test test-rust test-vm test-times docs quick bench mutants demo node-initrd image images release release-check release-fixtures clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

deps: packages crates ## install what building and testing need: Debian packages that are missing, crates

crates:
	@if command -v $(CARGO) >/dev/null; then $(CARGO) fetch --quiet --locked; fi

packages:
	@# Twice: what the first round installs may remove another package of the list, such as one that is there from backports.
	for round in 1 2; do
		installed=$$(dpkg-query -W -f '$${db:Status-Status} $${Package}\n' | sed -n "s/^installed //p")
		missing=
		for wanted in $(PACKAGES); do
			if ! grep --quiet --line-regexp --fixed-strings "$$(tr / '\n' <<<"$$wanted")" <<<"$$installed"; then
				missing="$$missing $${wanted%%/*}"
			fi
		done
		if [ -z "$$missing" ]; then exit; fi
		sudo=$$([ "$$(id -u)" = 0 ] || echo sudo)
		echo "== Installing" $$missing
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $$(echo $$missing)"
		# The package lists may be absent or too old for the mirror.
		$$install || { $$sudo apt-get update; $$install; }
	done

toolchain: # Debian's own Rust is older than this workspace needs
	@wanted=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	found=$$(rustc --version 2>/dev/null | awk '{ print $$2 }' || true)
	if [ -z "$$found" ] || ! printf '%s\n' "$$wanted" "$$found" | sort --check=quiet --version-sort; then
		echo "This needs Rust $$wanted or newer; found: $${found:-none}. https://rustup.rs installs one for your user." >&2
		exit 1
	fi

build: toolchain ## attest-gateway, attest-controller, attest-audit and attest-node, release builds in target/release
	@echo "== Building attest-gateway, attest-controller, attest-audit and attest-node"
	export ATTEST_COMMIT=$$(git rev-parse HEAD 2>/dev/null || true)
	$(CARGO) build --release --locked --package attest-gateway --package attest-controller --package attest-audit --package attest-node

programs: toolchain # development builds, and the demo
	@echo "== Building attest-gateway, attest-audit, attest-node and the demo; make test goes on from here"
	$(CARGO) build $(PROGRAMS)

check: toolchain deny ## formatting, lints, licences and sources of dependencies, words of the documents
	@echo "== Words of the documents"
	.ci/words
	echo "== Formatting"
	$(CARGO) fmt --all --check
	echo "== Lints"
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	# A gateway without the cluster's API.
	$(CARGO) check --package attest-gateway --no-default-features --locked --quiet
	if command -v shellcheck >/dev/null; then
		echo "== Shell scripts"
		shellcheck --external-sources .ci/run .ci/docs .ci/times .ci/words gateway/image/build release/build release/check-* release/lib release/programs release/deb/*/p* swtpm-tests/images/build swtpm-tests/images/fast-init swtpm-tests/images/measured-init
	fi

deny:
	@if command -v cargo-deny >/dev/null; then
		echo "== Dependencies"
		$(CARGO) deny --locked check bans licenses sources
	else
		echo "== Dependencies: not checked, cargo-deny is not installed (cargo install --locked cargo-deny)"
	fi

test: deps check ## everything: checks, all tests, TPMs and VMs included
	@# What VMs boot waits for the mirror and the disk while the compiler does not. The programs in the VMs are those that the other tests
	@# run: a release build of them would take longer than all tests.
	$(MAKE) -j2 images test-rust
	$(MAKE) test-vm

test-rust:
	@echo "== Tests"
	$(CARGO) test --workspace --exclude swtpm-tests --locked -- --test-threads=$(TEST_THREADS)

	# The programs are those that the tests have built.
	.ci/docs --check "$(DEBUG)"

docs: toolchain ## write the generated pages of docs/reference: commands, settings, codes, fields of the log, metrics; CHECK=1 compares
	@$(CARGO) build --locked --package attest-gateway --package attest-controller --package attest-audit --package attest-node
	.ci/docs $(if $(CHECK),--check) "$(DEBUG)"
	$(if $(CHECK),,WRITE_DOCS=1) $(CARGO) test --workspace --exclude swtpm-tests --locked --quiet --test documents

quick: toolchain ## what to run after each change: formatting, the modules' own tests, what the documents say
	@$(CARGO) fmt --all --check
	$(CARGO) test --workspace --locked --quiet --lib --test documents --test architecture

test-times: deps ## make test, and a table of where its time goes
	@.ci/times

test-vm: images
	@echo "== Tests with TPMs and VMs"
	# Else the TPM software stack prints every refusal that a test provokes.
	TSS2_LOG=all+none $(CARGO) test --package swtpm-tests --locked -- --test-threads=$(VM_TEST_THREADS)

release-fixtures: deps ## what this release writes, for the tests of later ones: release/fixtures/VERSION; never for a version that is out
	@WRITE_FIXTURES=1 $(CARGO) test --workspace --exclude swtpm-tests --locked --test all release_fixtures::writes

bench: toolchain ## all benchmarks, one after the other, and their report: target/bench/report.md; BENCHES="boot storm" for a part
	@folder=$${CARGO_TARGET_DIR:-target}/bench
	mkdir -p "$$folder"
	find "$$folder" -maxdepth 1 -type f -delete
	bench="$(CARGO) bench --workspace --exclude swtpm-tests --locked --quiet"
	echo "== Building the benchmarks"
	$$bench --no-run $(addprefix --bench ,$(BENCHES) report)
	failed=
	for name in $(BENCHES); do
		echo "== $$name ($$(date +%H:%M:%S))"
		$$bench --bench $$name || failed="$$failed $$name"
	done
	echo "== Report"
	BENCHES_FAILED="$$failed" $$bench --bench report || failed="$$failed report"
	if [ -n "$$failed" ]; then
		echo "Failed:$$failed" >&2
		exit 1
	fi

mutants: toolchain ## mutation tests of what decides (hours); FILE=attest/src/tpm/ak.rs for a part
	@if ! $(CARGO) mutants --version >/dev/null 2>&1; then
		echo "cargo-mutants is not installed: cargo install --locked cargo-mutants" >&2
		exit 1
	fi
	echo "== Mutants: which alterations no test notices; build/mutants has the details"
	mkdir -p build/mutants
	$(CARGO) mutants --output build/mutants $(if $(FILE),--re '$(FILE)')

images: ## what the VMs boot, of Debian 12 and 13, in build/images (2 minutes, then kept)
	@swtpm-tests/images/build all

node-initrd: build ## the file to append to an initrd: build/attest-node-initrd.cpio.gz
	@mkdir -p build
	attest/node/initrd/build "$${CARGO_TARGET_DIR:-target}/release/attest-node" build/attest-node-initrd.cpio.gz

image: $(if $(PROGRAMS_FOLDER),,build) ## a container image of both programs: build/attest-gateway-image, an OCI layout, and .tar; PROGRAMS_FOLDER=FOLDER for others
	@version=$$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
	folder="$(or $(PROGRAMS_FOLDER),$${CARGO_TARGET_DIR:-target}/release)"
	gateway/image/build "$$folder/attest-gateway" "$$folder/attest-controller" "$$folder/attest-audit" build/attest-gateway-image "$$version"

release: toolchain ## packages, image, manifests, symbols, SBOMs, notes and SHA256SUMS in build/release (20 minutes)
	@release/build build/release

# Each is a script, release/check-NAME. The quick ones are first.
RELEASE_CHECKS ?= refusals image rpm debian vms reproducible

release-check: deps release ## the tests that make test leaves out: packages, image, further systems in VMs, two equal builds; RELEASE_CHECKS=image for a part
	@for check in $(RELEASE_CHECKS); do
		echo "== release/check-$$check ($$(date +%H:%M:%S))"
		release/check-$$check
	done

demo: deps toolchain ## four VMs ask for their config; KEEP=1 leaves the gateway running
	@$(MAKE) programs
	$(DEBUG)/demo $(if $(KEEP),--keep)

clean: ## remove target/ and build/
	@$(CARGO) clean
	if [ -d build ]; then $$([ "$$(id -u)" = 0 ] || echo sudo) rm -rf --one-file-system build; fi
