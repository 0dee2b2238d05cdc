# make help lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build deps lint test test-all test-unit busy race conformance browser screenshots bench soak fast-path kernels package package-test package-vm readme-test site release fuzz demo demo-fleet demo-pair fleet golden worlds sim night sim-cover models planted discover-servers verify-release clean

# The system programs live where an ordinary user's PATH may not look.
export PATH := $(PATH):/usr/sbin:/sbin
# The version is passed by hand below: a checkout of another user must build too.
# Tests and programs have the same flags, so that all is compiled once. The tag leaves out a writer of manual pages, which has not
# been called and takes 2 ms of each start; a build without it does the same.
export GOFLAGS += -buildvcs=false -trimpath -tags=urfave_cli_no_docs
export CGO_ENABLED ?= 0
# The Go of a distribution fetches the one that go.mod names.
export GOTOOLCHAIN ?= auto
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 30s
# Of one package, on a machine with much other work: a quiet one needs seven minutes at most.
TIMEOUT ?= 60m

# Root runs every test at once. For another user the packages with privileged tests
# are built by that user, and only their test programs run as root; what those build
# themselves stays out of the user's cache.
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo,)
AS_ROOT = sudo -E env PATH='$(PATH)' GOCACHE=/tmp/svcctl-root-cache GOMODCACHE=$(shell go env GOMODCACHE)
EXEC = $(if $(SUDO),-exec "$(AS_ROOT)")
PACKAGES = $(if $(SUDO),.ci/privileged,go list ./...)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

build: ## bin/svcctl, a static program
	@.ci/deps go
	CGO_ENABLED=0 go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/svcctl ./cmd/svcctl

deps: ## install the programs that tests and the demo use (apt-get)
	@.ci/deps

# The tools are pinned in a module of their own: the product requires none of them.
TOOL = go tool -modfile=.ci/tools/go.mod
# Words of test data that are spelled otherwise on purpose.
SPELLED ?= mainfests,signalling
lint: ## gofmt, go vet, staticcheck and US spelling
	@bad=$$(gofmt -l .); [ -z "$$bad" ] || { echo "not as gofmt writes it: $$bad" >&2; exit 1; }
	go vet ./...
	$(TOOL) staticcheck ./...
	@git ls-files -- ':!:**/testdata/**' | xargs $(TOOL) misspell -error -locale US -i $(SPELLED)

# The program to test, an absolute path: built once, unless the environment names another.
export SVCCTL_BINARY ?= $(CURDIR)/bin/svcctl

# Most tests wait most of the time, so six packages run at once: those that compute and those that wait for a minute begin first.
# What a test may not share, as namespaces and ports, is its own.
SLOW = ./appliance/e2e ./appliance/reconcile ./appliance/test/script ./appliance/discover/... ./appliance/announce/interop \
	./store/fleet ./appliance/prober ./api ./appliance/conntrack ./appliance/relay ./appliance/soak ./appliance/simulate ./nft
# Left to make test-all: the tests that .ci/long names, and why.
LONG = ^($(shell grep -oE '^Test[A-Za-z0-9_]+' .ci/long | paste -sd '|'))$$
LONG_IN = ./appliance/e2e ./appliance/discover/docker ./appliance/reconcile
# Those with a thousand new connections a second are last, with nothing beside them.
ALONE = ^Test(ZeroDrop_updates|[KP][0-9]+_[A-Za-z]+UnderLoad|K01_healingTime)$$
ALONE_IN = ./appliance/soak
TESTED = SVCCTL_REQUIRE_PRIVILEGED=1 go run ./.ci/report go test -count=1 -vet=off -timeout $(TIMEOUT) -json
LANE = $(TESTED) -p 6 -skip '$(LONG)|$(ALONE)' $(EXEC) -- $(SLOW) $$($(PACKAGES))
# Random tests that have a quarter of their seeds in make test, and all of them in make test-all.
SEEDED = ^Test(UpdatesComeToWhatCompileSays|UpdatesArriveAtTheRuleset|RecoverIsTheInverseOfCompile|1141_.*|Oracle|OracleAffinity|OracleLimits|EgressInRandomWorlds|ForeseenIsPlanned|83[56]_.*|1011_.*|Model|RandomStories|SealedStartIsTheSame|LettingDocumentsGoChangesNothing|RandomChanges|ChangesTouchFewSlices|EveryFlippedByteIsFoundOrHarmless|EveryElementArrives)$$
SEEDED_IN = ./appliance/e2e ./nft ./nft/kernel ./appliance/reconcile ./store ./store/engine ./appliance/endpoints
# Half as many tests at once as in LANE, beside which it runs.
LONG_LANE = $(TESTED) -parallel 5 -run '$(LONG)' $(EXEC) -- $(LONG_IN)
SEEDED_LANE = SVCCTL_SEEDS=all $(TESTED) -run '$(SEEDED)' $(EXEC) -- $(SEEDED_IN)
ALONE_LANE = $(TESTED) -run '$(ALONE)' $(EXEC) -- $(ALONE_IN)
UNPRIVILEGED = $(if $(SUDO),go test -timeout $(TIMEOUT) ./...)

test: deps build ## the tests, with real packets in network namespaces, without the long ones (root or sudo)
	$(UNPRIVILEGED)
	@code=0; $(LANE) || code=1; $(ALONE_LANE) || code=1; exit $$code

# Beside the first lane are the long tests, those of the tools, and the conformance tests, which wait for others' programs:
# they begin with the first, and nothing waits for them in the end.
test-all: deps lint build ## everything: lint, test, the long tests, those of the tools, conformance and browser (root or sudo)
	$(UNPRIVILEGED)
	@code=0; mkdir -p bin; trap 'kill 0' INT; \
	{ code=0; $(LONG_LANE) || code=1; $(SEEDED_LANE) || code=1; exit $$code; } >bin/long.log 2>&1 & long=$$!; \
	{ tools=0; go test ./.ci/report ./.ci/release && (cd .ci/package/site && go test ./...) || tools=1; $(CONFORMANCE) && [ $$tools = 0 ]; } >bin/conformance.log 2>&1 & conformance=$$!; \
	$(LANE) || code=1; \
	wait $$long || code=1; wait $$conformance || code=1; \
	cat bin/long.log bin/conformance.log; \
	$(ALONE_LANE) || code=1; \
	exit $$code
	$(MAKE) browser

# Modules of their own: what the clients need is none of the product's dependencies.
KUBERNETES ?=
export KUBERNETES
CONFORMANCE = SVCCTL_REQUIRE_PRIVILEGED=1 .ci/conformance -p 1 -count=1 -vet=off -timeout $(TIMEOUT) -json $(EXEC) 2>&1 | go run ./.ci/report

conformance: deps build ## kubectl, client-go, CoreDNS and the suite of the Gateway API against the API (root or sudo), downloaded and built; KUBERNETES=1.36: older clients
	$(CONFORMANCE)

# axe-core is what npm gives under this version; package-lock.json has its checksum.
BROWSER = cd api/conformance/browser && CGO_ENABLED=0 SVCCTL_REQUIRE_PRIVILEGED=1 go test -count=1 -timeout $(TIMEOUT) $(EXEC)
browser: deps build ## the dashboard in Chromium, headless, and axe-core (root or sudo); axe-core is downloaded
	@.ci/deps chromium npm
	@mkdir -p bin/conformance/axe
	cp api/conformance/browser/package*.json bin/conformance/axe
	npm --prefix bin/conformance/axe ci --silent --no-fund --no-audit
	cd api/conformance/browser && CGO_ENABLED=0 go vet ./...
	$(BROWSER) ./...

screenshots: deps build ## pictures of each page of the dashboard, light and dark, wide and narrow, in bin/screenshots (root or sudo)
	@.ci/deps chromium npm
	SVCCTL_SCREENSHOTS=$(CURDIR)/bin/screenshots; export SVCCTL_SCREENSHOTS; $(BROWSER) -run Screenshots .

# Test programs allocate much and live for seconds: a garbage collection at four times the heap takes a quarter off their work.
# Those that wait for half a minute begin first, and enough others run beside them that no core is idle.
WAITING = ./api ./appliance/discover/consul ./appliance/prober ./cmd/svcctl/top ./watch ./appliance/relay ./cmd/svcctl
test-unit: ## the tests that need no rights and no programs, within a minute
	GOGC=400 go test -short -vet=off -p 12 $(WAITING) ./...

TIMES ?= 5
busy: ## make TARGET (test) TIMES (5) times beside LOOPS (16) busy loops; also each failure that a second run forgives (root or sudo)
	@.ci/busy $(TIMES) $(MAKE) $(or $(TARGET),test)

# Left out: packages whose tests run the built program, which the detector does not see.
RACE_WITHOUT = /appliance/(bench|e2e|soak)$$|/\.ci/
race: deps build ## the tests under the race detector (root or sudo, gcc)
	CGO_ENABLED=1 SVCCTL_REQUIRE_PRIVILEGED=1 go test -race -p 1 -count=1 -timeout 30m $(EXEC) $$(go list ./... | grep -vE '$(RACE_WITHOUT)')

# docs/performance.md says what the table means and has the last one.
bench: deps ## one table of what everything costs, in some minutes (root or sudo), and one of the fast path, in instructions of a kernel that has it
	go test -count=1 -timeout 30m -run '^$$' -bench . -benchtime 1x $(EXEC) ./appliance/bench
	TESTS=none KERNEL_TESTS=none SCRIPTS=none BENCH='FastPath|AfterRefusal' MINUTES=20 appliance/e2e/kernels/run.sh $(FAST_KERNEL)

# What docs/reliability.md promises. Each is a variable: make soak SVCCTL_SOAK_KILLS=1000
SVCCTL_SOAK_UPDATES ?= 1000
SVCCTL_SOAK_STOPS ?= 100
SVCCTL_SOAK_UPGRADES ?= 100
SVCCTL_SOAK_KILLS ?= 200
SVCCTL_SOAK_FLUSHES ?= 50
SVCCTL_SOAK_HEALS ?= 50
SVCCTL_SOAK_RANDOM_KILLS ?= 2000
SVCCTL_SOAK_CALL_KILLS ?= 200
SVCCTL_SOAK_SECONDS ?= 600
SVCCTL_SOAK_ANNOUNCED ?= 200
SOAK = SVCCTL_REQUIRE_PRIVILEGED=1 $(foreach v,UPDATES STOPS UPGRADES KILLS FLUSHES HEALS RANDOM_KILLS CALL_KILLS SECONDS,SVCCTL_SOAK_$(v)=$(SVCCTL_SOAK_$(v))) \
	go test -count=1 -v -timeout 3h $(EXEC) ./appliance/soak

soak: deps build ## packets that never stop, for half an hour (root or sudo); the tests are quick in make test
	$(SOAK)
	SVCCTL_SOAK_SERVICES=10000 $(SOAK) -run healingTime
	SVCCTL_REQUIRE_PRIVILEGED=1 SVCCTL_SOAK_ANNOUNCED=$(SVCCTL_SOAK_ANNOUNCED) go test -count=1 -v -timeout 3h $(EXEC) ./appliance/e2e -run 'Test49[38]_'

sim: ## one box from a seed, with faults of disk, kernel, files, clock and clients: make sim, FOR=1h, SEED=4711, SCRIPT=fail.txt, FLEET=1
	$(if $(SEED)$(SCRIPT),,FOR=$(or $(FOR),24h)) SEED=$(SEED) FLEET=$(FLEET) SCRIPT=$(abspath $(SCRIPT)) go test -count=1 -v -timeout 0 -run TestSmoke ./appliance/simulate

NIGHTS ?= bin/nights
night: ## the simulation for HOURS (8) in JOBS (2) processes, and what all nights in NIGHTS sum up to (HOURS=0: that alone): simulated hours, failures, and whether goroutines, descriptors and memory stay flat
	go test -c -o bin/simulate.test ./appliance/simulate
	.ci/night $(or $(HOURS),8) $(or $(JOBS),2) $(NIGHTS)

models: ## the models of the simulation against nf_tables and etcd: make models SCRIPTS=200 TRANSACTIONS=10000 (root or sudo)
	@.ci/deps etcd
	go test -c -o bin/simulate.test ./appliance/simulate
	cd appliance/simulate && $(SUDO) env SVCCTL_REQUIRE_PRIVILEGED=1 SCRIPTS=$(or $(SCRIPTS),200) TRANSACTIONS=$(or $(TRANSACTIONS),10000) ../../bin/simulate.test -test.v -test.timeout 0 -test.run 'Test110[01]_'

sim-cover: ## what the simulation alone reaches of the product, and what it never does: make sim-cover SEEDS=60
	.ci/cover $(SEEDS)

planted: ## bugs that are planted in the product, each to be found by the simulation: make planted BUG=NAME; REPLAY=30: have so many of the failing scripts run again, and shrunk
	FIND=1 BUG=$(BUG) REPLAY=$(REPLAY) go test -count=1 -v -timeout 2h -run TestPlanted ./appliance/simulate

CONSUL ?= v1.12.9
discover-servers: bin/servers/consul ## svcctl discover with a real Consul, built in five minutes, and the Nomad that SVCCTL_NOMAD names: make discover-servers CONSUL=v1.12.9
	SVCCTL_CONSUL=$(CURDIR)/bin/servers/consul go test -count=1 -v -timeout $(TIMEOUT) ./appliance/discover/consul ./appliance/discover/nomad ./examples -run '_consul_|_nomad_|Discover'

# Its requirements are those of a program of its own; the checksums come from the database of the Go modules.
bin/servers/consul:
	rm -rf bin/servers/module && mkdir -p bin/servers/module
	cd bin/servers/module && go mod init consul.test && go get -tool github.com/hashicorp/consul@$(CONSUL) && \
		CGO_ENABLED=0 go build -o ../consul github.com/hashicorp/consul

KERNELS ?= linux-image-amd64
worlds: deps ## random worlds, judged and on the wire, against a second implementation (root or sudo): make worlds SEED=1000 COUNT=300
	SEED=$(or $(SEED),1) COUNT=$(or $(COUNT),1000) go test -count=1 -v -timeout 30m -run Test835_ ./appliance/reconcile
	SEED=$(or $(SEED),1) COUNT=$(or $(COUNT),70) go test -count=1 -v -timeout 30m -run Test836_ $(EXEC) ./appliance/e2e

# Of Debian 12 it is 6.1, of Debian 13 6.12.
FAST_KERNEL ?= linux-image-cloud-amd64
fast-path: deps ## the tests of the fast path in a virtual machine, on a kernel of Debian that has flowtables, in some minutes (root or sudo)
	@code=0; TESTS='Test106[89]_|Test107[0156789]_' KERNEL_TESTS='Test106[56]_' SCRIPTS=none STRICT=1 MINUTES=60 appliance/e2e/kernels/run.sh $(FAST_KERNEL) || code=$$?; \
	[ "$$code" -ne 2 ] || { echo 'PRIVILEGED TEST SKIPPED: the tests of the fast path: $(FAST_KERNEL) cannot be downloaded'; exit 0; }; exit $$code

kernels: deps ## tests on other kernels, in virtual machines: make kernels KERNELS='FILE.deb ...'
	appliance/e2e/kernels/run.sh $(KERNELS)

package: ## deb, rpm, tarball and OCI image for amd64 and arm64, with checksums and SBOM, in dist/
	.ci/package/build $(VERSION) dist

package-test: ## install, upgrade over traffic, remove and purge the deb and the rpm in a bare Debian (root; five minutes)
	.ci/package/test

package-vm: ## the same under a real systemd, with reboots (root; ten minutes); MACHINE=qemu: with a kernel of its own too
	.ci/package/vm

release: ## packages, tarballs, images, SBOMs, checksums, notes and the site, in dist/release; SIGNING_KEY=FILE signs
	rm -rf dist/release
	.ci/release/build $(VERSION) dist/release

verify-release: ## check a published release against its signature and its source: make verify-release VERSION=1.4.0 DIST=downloads
	.ci/release/verify $(VERSION) $(DIST)

readme-test: ## the commands of README.md, typed in a bare Debian with systemd (root; three minutes)
	GUEST=readme .ci/package/vm

site: ## the documentation as a static site with search, in dist/site
	@rm -rf dist/site
	@cd .ci/package/site && go run . ../../.. ../../../dist/site
	@echo 'dist/site/index.html is its first page'

# docs/bugs.md has the table.
reproduce-%: deps ## show a bug of docs/bugs.md before its fix, and that it is gone: make reproduce-14, reproduce-all (root or sudo)
	$(SUDO) .ci/reproduce $*

fuzz: ## every fuzz target for FUZZTIME (30s) with one worker: make fuzz TARGET=FuzzDecode; KEEP=1: keep the inputs that reach new code in testdata
	@KEEP=$(KEEP) .ci/fuzz $(FUZZTIME) $(TARGET)

demo: build ## the appliance at work between namespaces, in half a minute (root or sudo)
	@.ci/deps nft ip
	CGO_ENABLED=0 go build -trimpath -o bin/demo ./examples/demo
	@examples/demo/demo.sh bin/svcctl bin/demo

demo-fleet: build ## three boxes and an etcd of three members between namespaces, in a minute (root or sudo)
	@.ci/deps nft ip etcd etcdctl
	CGO_ENABLED=0 go build -trimpath -o bin/demo ./examples/demo
	@examples/demo/fleet.sh bin/svcctl bin/demo

# What docs/fleet.md promises, with etcd's own processes. Each is a variable: make fleet SVCCTL_FLEET_EACH=4000
SVCCTL_FLEET_EACH ?= 1500
fleet: deps build ## many boxes, one truth: faults of etcd, lost races, packets through every box (root or sudo); the tests are shorter in make test
	SVCCTL_REQUIRE_PRIVILEGED=1 SVCCTL_FLEET_EACH=$(SVCCTL_FLEET_EACH) go test -count=1 -v -timeout $(TIMEOUT) ./store/fleet
	SVCCTL_REQUIRE_PRIVILEGED=1 go test -count=1 -timeout $(TIMEOUT) $(EXEC) -run 'Test(45[5-9]|460|47[5-8]|562|57[0679]|59[1-3])_' ./appliance/e2e

demo-pair: build ## two boxes and a client that downloads, while one box dies (root or sudo)
	@.ci/deps nft ip
	CGO_ENABLED=0 go build -trimpath -o bin/demo ./examples/demo
	@examples/demo/pair.sh bin/svcctl bin/demo

golden: ## write the plan.nft of every example anew; review the difference like code
	go test ./examples -update

clean: ## remove what was built
	rm -rf bin dist
