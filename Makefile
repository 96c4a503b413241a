# linus: run jobs in ephemeral Proxmox VE virtual machines.
SHELL       := bash
.SHELLFLAGS := -Eeuo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOFLAGS_BUILD := -ldflags '-s -w -X main.version=$(VERSION)'
# One way of compiling for build, vet and test: what one has compiled the others find. Programs
# of tests, and those that tests build, need no debugging information.
export GOFLAGS := -trimpath -ldflags=-w $(filter-out -trimpath -ldflags=-w,$(GOFLAGS))
SHELL_MAIN  = $(shell git ls-files 'scripts/proxmox/*.sh' 'scripts/guest/*.sh' 'scripts/dev/*.sh' 'internal/lab/image/*.sh' 'internal/sandbox/rpc/*.sh' '.packaging/*.sh' .ci/run)
SHELL_LIB   = $(shell git ls-files 'scripts/lib/*.sh')
BATS_FILES  = $(shell git ls-files 'scripts/test/*.bats')
DRIVER ?= qemu

SOAK_JOBS ?= 1000
SOAK_ENGINES ?= 500
SOAK_SEED ?= 0

# Packages that are not watched for races: those that start built programs, hundreds of
# times, and those that share nothing. At night others are that wait for hosts and browsers,
# and the executor, of which BY_MANY is watched by day: tests in which many work on the same.
UNWATCHED_PACKAGES := /(cmd/(linus|pvelab)|internal/(e2e|lab|policy|term|config$(if $(filter nightly,$(LINUS_TEST_LOOP)),,|daemon|executor|git|guest|job|mcptool|proxmox|web)))(/|$$)
BY_MANY := ^(TestCancel_AtEveryPhase|TestEngines_(CancelElsewhere|EachJobRunsOnce|StopHandsOver|TellOthersOfJobs)|TestPool_HundredClaimersTenMembers|TestSubmit|TestWatch)

# Tests of whole programs that run on PostgreSQL, too: the main path, cancel, an engine that
# is killed, an idempotency key, output of 10 MB.
ON_POSTGRES := ^(TestJob_FailsWithItsExitStatus|TestCancel_WhileRunning|TestEngineKilled_TwoClients|TestWait_OneCallReturnsTheOutput|TestOutput_OfTenMegabytes)$$

# Rows of the benchmark report (internal/bench has their names), and measurements of each.
ROWS ?= all
N ?= 0

.PHONY: help build demo compare check test nightly race programs e2e-postgres vet soak soak-qemu soak-engines mutants scripts shell bats lint tools fmt golden vendored bench bench-report cross dist image rename clean deps

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# linus-worker and linus-sandbox are for VMs, on whatever system they are built.
build: ## static binaries bin/linus, bin/linus-worker, bin/linus-sandbox and bin/pvelab
	@mkdir -p bin
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/ ./cmd/linus ./cmd/pvelab
	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build $(GOFLAGS_BUILD) -o bin/ ./cmd/linus-worker ./cmd/linus-sandbox

demo: ## run jobs in real VMs of a stand-in Proxmox host (DRIVER=process: without QEMU)
	@bash scripts/dev/demo.sh $(DRIVER)

deps:
	@bash scripts/dev/install-deps.sh $(if $(filter nightly,$(LINUS_TEST_LOOP)),nightly,test)

# What stands between a change and the next, in a minute: nothing that starts a host, a
# server, a browser or built programs (internal/loops).
check: vet bin/gotestsum ## at every change, a minute: vet, build, all tests that start no host, checks of changed shell files
	$(IN_MEMORY) CGO_ENABLED=0 $(GOTESTSUM) --hide-summary=skipped --packages="$$(go list ./... | grep -v /internal/e2e$$)" -- -short -p 4 -vet=off -timeout 5m
	@$(MAKE) --no-print-directory shell CHANGED=1

# Side by side: tests of the shell and of whole programs wait more than they work.
test: export LINUS_TEST_LOOP := day
test: deps ## everything but nightly: vet, Go tests with -race, bats, shell checks, a real VM (about 15 minutes)
	@$(MAKE) --no-print-directory -j4 programs race bats shell

nightly: export LINUS_TEST_LOOP := nightly
nightly: deps ## everything: each fault at each moment, soaks, browsers, all of PostgreSQL, the provider's suite on real VMs (an hour)
	@$(MAKE) --no-print-directory programs
	@$(MAKE) --no-print-directory race
	@$(MAKE) --no-print-directory scripts e2e-postgres
	LINUS_TEST_DATABASE=postgres $(GOTESTSUM) --packages="./internal/store ./internal/executor" -- -count=1 $(RACE) -timeout 60m
	@$(MAKE) --no-print-directory mutants N=100

# Of a package, on a machine that does other things, too.
TIMEOUT ?= 90m

# Tests of whole programs wait more than they work: more of them at once than there are cores.
AT_ONCE := -parallel 4

# Where tests have their files: in memory, if that has 2 GiB for them; not at night those of many
# real VMs. To make files, to write them through and to remove them is a good part of what they do.
IN_MEMORY = TMPDIR=$(or $(shell [[ -w /dev/shm && $$(df -k --output=avail /dev/shm | tail -n 1) -gt 2097152 ]] && echo /dev/shm),$${TMPDIR:-/tmp})

# A test that failed beside all others is repeated once, whole, when they have ended, and
# said to be; unless there was a data race.
GOTESTSUM := bin/gotestsum --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=15 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race
$(firstword $(GOTESTSUM)):
	@bash scripts/dev/tools.sh gotestsum

# SQLite's code, translated from C, takes ten times as long when it is watched for races;
# ciphers, regular expressions and Go's parser share nothing, and take a good part of the rest.
RACE := -race -vet=off $(addprefix -gcflags=,$(addsuffix =-race=false,modernc.org/... crypto/internal/... regexp/... go/...))
race: vet bin/gotestsum ## Go tests with -race, but for the packages of make programs; then those that PostgreSQL has to pass, too
	$(IN_MEMORY) $(GOTESTSUM) --packages="$$(go list ./... | grep -vE '$(UNWATCHED_PACKAGES)')" -- $(RACE) -timeout $(TIMEOUT)
	$(if $(filter nightly,$(LINUS_TEST_LOOP)),,$(IN_MEMORY) $(GOTESTSUM) --packages=./internal/executor -- $(RACE) -timeout $(TIMEOUT) -run '$(BY_MANY)')
	$(IN_MEMORY) CGO_ENABLED=0 LINUS_TEST_DATABASE=postgres $(GOTESTSUM) --packages="./internal/store" -- -count=1 -vet=off -timeout $(TIMEOUT) -skip ^TestPostgres_
	$(IN_MEMORY) CGO_ENABLED=0 LINUS_TEST_DATABASE=postgres $(GOTESTSUM) --packages="./internal/e2e" -- -count=1 $(AT_ONCE) -vet=off -timeout $(TIMEOUT) -run '$(ON_POSTGRES)'

# Go does not see that the programs they build have changed: -count=1. The longest goes first.
programs: vet bin/gotestsum ## tests of whole programs, the lab and its real VMs, MCP clients from npm
	@bash scripts/dev/clients.sh >/dev/null || { [[ $$? -eq 75 ]] && echo "tests with MCP clients from npm are skipped" >&2; }
	$(if $(filter nightly,$(LINUS_TEST_LOOP)),,$(IN_MEMORY)) CGO_ENABLED=0 $(GOTESTSUM) --packages="./internal/e2e $$(go list ./... | grep -E '$(UNWATCHED_PACKAGES)')" -- -count=1 -p 3 $(AT_ONCE) -vet=off -timeout $(TIMEOUT)

vet: build ## go vet; make cross for other systems
	CGO_ENABLED=0 go vet ./...

e2e-postgres: build bin/gotestsum ## tests of whole programs on PostgreSQL, all of them; make race has a few
	CGO_ENABLED=0 LINUS_TEST_DATABASE=postgres $(GOTESTSUM) --packages=./internal/e2e -- -count=1 $(AT_ONCE) -timeout $(TIMEOUT)

soak: ## 1000 jobs, and sandboxes, under faults drawn at random (SOAK_JOBS=, SOAK_SEED= of a run to repeat)
	go test -v -timeout 3h -run '^TestSoak$$' ./internal/e2e -soak.jobs=$(SOAK_JOBS) -soak.seed=$(SOAK_SEED)

soak-qemu: ## 20 jobs in real VMs under faults
	go test -v -timeout 3h -run '^TestSoakQemu$$' ./internal/e2e -soak.qemu=20 -soak.seed=$(SOAK_SEED)

soak-engines: ## 500 jobs of three engines on three nodes under faults (SOAK_ENGINES=)
	go test -v -timeout 3h -run '^TestSoakEngines$$' ./internal/e2e -soak.engines=$(SOAK_ENGINES) -soak.seed=$(SOAK_SEED)

PKG ?= all
mutants: ## break guards one at a time: a test dies of each, or testdata/mutants.txt has it (PKG=internal/gate, N=100: others each day)
	$(IN_MEMORY) CGO_ENABLED=0 go test -v -count=1 -timeout 3h -run '^TestMutants$$' ./internal/mutate -mutate.only="$(PKG)" -mutate.n=$(N) $(if $(UPDATE),-mutate.update)

# CHANGED=1: only files that changed since all were found well, by a run or by many.
SHELL_ALL = $(SHELL_MAIN) $(BATS_FILES) $(SHELL_LIB)
SHELL_WELL := bin/shell.well
SHELL_FILES = $(if $(and $(CHANGED),$(wildcard $(SHELL_WELL))),$(filter $(shell find $(SHELL_ALL) -newer $(SHELL_WELL)),$(SHELL_ALL)),$(SHELL_ALL))
shell: ## shellcheck and shfmt
	@mkdir -p $(dir $(SHELL_WELL)) && touch $(SHELL_WELL).new
	$(if $(SHELL_FILES),bash scripts/dev/shellcheck.sh $(SHELL_FILES),@:)
	$(if $(SHELL_FILES),shfmt -i 2 -ci -bn -d $(SHELL_FILES),@:)
	@mv $(SHELL_WELL).new $(SHELL_WELL)

scripts: bats ## bats, then shell
	@$(MAKE) --no-print-directory shell

bats: ## tests of the shell scripts
	$(IN_MEMORY) bash scripts/dev/bats.sh

lint: ## golangci-lint, and actionlint for .github/workflows (make tools installs both)
	@bash scripts/dev/tools.sh actionlint golangci-lint
	bin/actionlint
	bin/golangci-lint run ./...

tools: ## install the linters and gotestsum into bin/, at the versions of scripts/dev/tools.sh
	@bash scripts/dev/tools.sh

fmt: ## format Go and shell files
	gofmt -w $(shell git ls-files '*.go')
	shfmt -i 2 -ci -bn -w $(SHELL_MAIN) $(SHELL_LIB) $(BATS_FILES)

golden: ## rewrite snapshots and generated tables
	go generate ./internal/job
	go test ./internal/loops ./internal/mcptool ./internal/control ./internal/config ./cmd/linus ./internal/telemetry ./internal/bench -update

vendored: ## the page's files from npm are the packages' own (UPDATE=1: fetch them)
	UPDATE=$(UPDATE) bash scripts/dev/vendored.sh

# The cheap measures, on this machine and now, against another commit's: BASE=, N= pairs.
compare: ## what this commit costs, measured in turns with BASE (default: the last release, or a week ago); fails beyond testdata/compare.json
	@$(IN_MEMORY) N=$(or $(filter-out 0,$(N)),5) bash scripts/dev/compare.sh $(BASE)

bench: ## benchmarks
	go test -run '^$$' -bench . -benchmem ./...

bench-report: ## measure what is not measured at this commit and write the report (ROWS="linked jobs", N=3, DRIVER=process)
	CGO_ENABLED=0 go test -v -timeout 2h -run '^TestBenchReport$$' ./internal/e2e -bench.rows="$(ROWS)" -bench.n=$(N) -bench.driver=$(DRIVER)
	CGO_ENABLED=0 go test ./internal/bench -update

cross: ## build and vet linus for every system it is released for
	@bash .packaging/cross.sh

dist: ## a release in dist/: archives, deb, rpm, MCPB bundles, apt repository, SBOM (REPOSITORY=owner/name: server.json and formula, too)
	@bash .packaging/dist.sh "$(VERSION)"

IMAGE ?= linus:latest
image: build ## a container image of bin/linus, by podman, buildah or docker (IMAGE=name)
	@bash .packaging/image.sh bin/linus "$(IMAGE)"

rename: ## make the module github.com/OWNER/linus, in code, tests and README (OWNER=you)
	bash scripts/dev/rename.sh "$(OWNER)"

clean: ## remove what was built
	rm -rf bin .cache dist
