# Everything the project needs is built from Go modules pinned in go.mod and hack/tools; nothing else is installed. `make help` lists
# the targets that most people need, and `make help-all` the others.

GO ?= go
BIN := $(CURDIR)/bin
SCENARIOS ?=
BENCH_OUT ?= $(CURDIR)/.bench
BENCH_FLAGS ?=
DEMO_FLAGS ?=
AUDIT_DIR ?= $(CURDIR)/.audit
DIST ?= $(CURDIR)/dist$(addprefix -,$(LINE))
# FROM is what make push pushes.
FROM ?= $(DIST)
# TWICE is where make test-release works.
TWICE := $(CURDIR)/.twice
# PREVIOUS is the commit of the version before this one: test/install/testdata/README.md.
PREVIOUS := b5db682d0a4c26894abde4d9b80bd50944bbc4c8
# LEAN builds test programs in half the time: go vet runs by itself, and nobody debugs them.
LEAN := -vet=off -ldflags='-s -w'
# SUITES runs packages of tests, prints how long the rest will take by the last run, and says how to repeat what failed. It runs nothing again.
SUITES := $(BIN)/suites -times=$(BIN)/times.json
# ALONE are the tests of test/budget that measure how long something takes, and FIRST_MINUTE is one of test/install. They run by themselves, in test-all. NOT_IN_CI are
# tests beside the neighbours that take longest to build. Only test-neighbours runs them.
FIRST_MINUTE := TestTheSandboxNeedsNothingElse
NOT_IN_CI := TestKEDAScalesToZeroAndBack|TestArgoCDAndFluxSeeNoDifference|TestKueueAdmitsJobsThatASpreadDivides|TestPodsThatWaitForKueueTakeNoSlots|TestVolcanoPlacesWhatACompatibleSpreadDivides|TestASpreadSaysThatVolcanoPlacesItsPods|TestPrometheusReadsAndJudges|TestInstallWithCertManager|TestTheSpecsOfOpenKruise|TestMigrationFromTheNewestOpenKruiseAndBack|TestAVerticalAutoscalerEvictsByTheBudget|TestTheTutorialOfGangs
ALONE := ^($(FIRST_MINUTE)|$(NOT_IN_CI)|TestTwoHundredDeletionsAreDecidedWithinTwoSeconds|TestAnAnswerTakesMilliseconds|TestBrokenBudgetsOfOneNamespaceDelayNoOther|TestAConflictStormOnTheStatusCostsTimeAndNoPods|TestWhatAnOperationCosts|TestUnderLoadAnAnswerCostsAtMostOneRead)$$

# The compiler makes much garbage. It collects it less often than it would, which takes a twelfth off a build. Go's cache does not depend on that.
COMPILE := GOGC=800 $(GO)
# Symbols for debuggers are left out, which takes a third off a binary. Stack traces and profiles do not need them.
GO_BUILD := $(COMPILE) build -ldflags='-s -w'

# LINE is the Kubernetes line that targets build and test: empty for that of go.mod, or a directory of hack/lines, for example LINE=1.37. Binaries of
# such a line are in bin/1.37: docs/decisions/0031-two-kubernetes-lines.md.
LINE ?=
LINES := $(patsubst hack/lines/%/pins.mod,%,$(wildcard hack/lines/*/pins.mod))
LINE_BIN := $(BIN)$(addprefix /,$(LINE))
# LINKED are the commands that link kube-scheduler's code. Each line has its own. CLIENTS only talk to the API server, and are the same for all lines.
LINKED := scheduler descheduler whatif
CLIENTS := controller sandbox kubectl-berth
ifneq ($(LINE),)
LINE_FLAGS := -modfile=$(CURDIR)/hack/lines/$(LINE)/go.mod -tags=kubernetes_$(subst .,_,$(LINE))
# Commands of Go that a test runs are of the line too.
LINE_ENV := BERTH_LINE=$(LINE) GOFLAGS="$(shell $(GO) env GOFLAGS) $(LINE_FLAGS)"
TOOLS_FLAGS := -modfile=$(CURDIR)/hack/lines/$(LINE)/tools.mod
endif
# LINE_PACKAGES are those that link kube-scheduler's code, in every line.
LINE_PACKAGES = $$($(GO) list -f '{{$$package := .ImportPath}}{{range .Deps}}{{$$package}} {{.}}{{"\n"}}{{end}}' ./cmd/... ./pkg/... | awk '$$2 ~ "^k8s.io/kubernetes/pkg/scheduler" {print $$1}' | uniq)

CONTROL_PLANE := $(addprefix $(LINE_BIN)/,etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok)

.DEFAULT_GOAL := help

# FIRST are the targets that a newcomer needs.
FIRST := demo sandbox build test generate lint

.PHONY: help
help: ## seconds | List the targets that most people need.
	@awk -v first=' $(FIRST) ' $(LIST_TARGETS) $(MAKEFILE_LIST)
	@printf '\nOn two cores. The first target that needs the control plane builds it as well, once; README.md says how long that takes.\nAll targets: make help-all\n'

.PHONY: help-all
help-all: ## seconds | List all targets.
	@awk $(LIST_TARGETS) $(MAKEFILE_LIST)

define LIST_TARGETS
'BEGIN {FS = ":.*## "} /^##@ / && !first {printf "\n%s\n", substr($$0, 5)} \
	/^[a-z-]+:.*## / && (!first || index(first, " " $$1 " ")) {split($$2, said, " [|] "); printf "  %-18s %-14s %s\n", $$1, said[1], said[2]}'
endef

##@ Run

.PHONY: demo
demo: tools ## minutes | Play two cases on a sandbox, step by step, and check every layout; DEMO_FLAGS="-pause 5s -stay" gives time to look at the page.
	$(call build-commands,scheduler controller sandbox kubectl-berth whatif)
	@$(GO) run ./test/demo $(DEMO_FLAGS)

.PHONY: demo-federation
demo-federation: tools ## minutes | Play a hub with three clusters, one of which gets full and one of which is lost, and check every layout.
	$(call build-commands,controller sandbox)
	@$(GO) run ./test/demo -federation $(DEMO_FLAGS)

.PHONY: sandbox
sandbox: tools build ## seconds | Start a control plane with Berth on this machine, in the foreground.
	$(BIN)/berth-sandbox up

##@ Build

.PHONY: build
build: | machine ## minutes | Build Berth's binaries into bin/, or with LINE=1.37 those for Kubernetes 1.37 into bin/1.37/.
ifeq ($(LINE),)
	$(call build-commands,$(LINKED) $(CLIENTS))
else
	$(call build-commands,$(CLIENTS))
	$(call build-commands,$(LINKED),/$(LINE),$(LINE_FLAGS))
# Hard links, because kubectl berth follows symbolic ones before it looks for the berth-whatif beside it.
	@cd $(LINE_BIN) && ln -f $(addprefix ../,berth-controller berth-sandbox kubectl-berth kubectl_complete-berth) .
endif

# One call of go build compiles once what the commands share, and links one while it compiles another. It names binaries after directories: they are built into
# bin/.cmd, and linked into bin by their own names. For another line there are a directory in bin and flags.
build-commands = @hack/build.sh "Berth$(if $(2), for Kubernetes $(LINE)): $(1)" 90 env $(GO_BUILD) -v $(3) -o $(BIN)$(2)/.cmd/ $(addprefix ./cmd/,$(1)) \
	$(foreach command,$(1),&& ln -f $(BIN)$(2)/.cmd/$(command) $(BIN)$(2)/$(patsubst berth-kubectl-%,kubectl-%,berth-$(command))) \
	&& cp cmd/kubectl-berth/kubectl_complete-berth $(BIN)/

# REGISTRY is where users pull images from.
REGISTRY ?= ghcr.io/berth-project
# $(call release-lines,flags,directory) makes the releases of all lines from a checkout, and their assets. In flags, $$line is the line, which is empty for that of go.mod.
release-lines = for line in '' $(LINES); do $(BIN)/release -registry $(REGISTRY) $${line:+-line=$$line} $(1) -out $(2)/dist$${line:+-$$line} || exit 1; done; \
	$(BIN)/release assets -to $(2)/dist-assets $(2)/dist $(addprefix $(2)/dist-,$(LINES))

$(BIN)/release: $(wildcard hack/tools/release/*)
	cd hack/tools/release && $(GO_BUILD) -o $@ .

.PHONY: release
release: $(BIN)/release ## half an hour | Make everything that VERSION=v1.2.3 consists of in dist/, for images in REGISTRY, or with LINE=1.37 in dist-1.37/. docs/releases.md says what that is.
	$(BIN)/release $(addprefix -line=,$(LINE)) -registry $(REGISTRY) -version "$(VERSION)" -out $(DIST)

.PHONY: assets
assets: $(BIN)/release ## an hour | Make the releases of all lines, in dist/ and dist-1.37/, and in dist-assets/ the files that people download.
	$(call release-lines,-version "$(VERSION)",$(CURDIR))

.PHONY: push
push: $(BIN)/release ## minutes | Push the images and the chart of dist/ to REGISTRY, or with FROM='DIRECTORY/images-*.tar' those of these files.
	for from in $(FROM); do $(BIN)/release push -from $$from -to $(REGISTRY) || exit 1; done

# KUBERNETES is what the API server says that it is. Helm and kubectl berth ask for it before they install Berth.
KUBERNETES := $(shell sed -n 's|^.*k8s.io/kubernetes \(v[0-9.]*\)$$|\1|p' $(if $(LINE),hack/lines/$(LINE)/tools.mod,hack/tools/go.mod))

# machine says what this machine lacks, before minutes are spent.
.PHONY: machine
machine:
	@hack/machine.sh

.PHONY: tools
tools: machine $(CONTROL_PLANE) ## minutes, once | Build the control plane and KWOK into bin/, if they are not there.

$(LINE_BIN)/control-plane: | machine
$(LINE_BIN)/control-plane: $(if $(LINE),hack/lines/$(LINE)/tools.mod,hack/tools/go.mod) $(shell find hack/tools/controlplane -name '*.go')
	@cd hack/tools && ../build.sh "the control plane$(if $(LINE), of Kubernetes $(LINE)), once" 250 env $(COMPILE) build -v -ldflags='-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' $(TOOLS_FLAGS) -o $@ ./controlplane

$(CONTROL_PLANE): $(LINE_BIN)/control-plane
	@ln -sf $(<F) $@

# The scheduler by itself, to measure Berth's beside it.
$(BIN)/kube-scheduler-alone: hack/tools/go.mod
	cd hack/tools && $(GO_BUILD) -o $@ k8s.io/kubernetes/cmd/kube-scheduler

# What real nodes need of Go. The rest are Debian's packages.
REAL_NODES := $(addprefix $(LINE_BIN)/,kubelet sandbox-container)

.PHONY: kubelet
kubelet: machine $(REAL_NODES) ## minutes, once | Make what real nodes of a sandbox need: build the kubelet, and install containerd, runc and plugins of the network from Debian's packages, if they are not there.
	@hack/containers.sh

$(LINE_BIN)/kubelet: $(if $(LINE),hack/lines/$(LINE)/tools.mod,hack/tools/go.mod) $(wildcard hack/tools/kubelet/*.go)
	@echo "building the kubelet$(if $(LINE), of Kubernetes $(LINE)), which takes a minute or two, once"
	@cd hack/tools && $(COMPILE) build -ldflags='-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' $(TOOLS_FLAGS) -o $@ ./kubelet

$(BIN)/kubelets/%/kubelet: hack/kubelets/%.mod
	@echo "building the kubelet of Kubernetes $*, which takes minutes, once"
	@cd hack/tools && $(COMPILE) build -ldflags='-s -w -X k8s.io/component-base/version.gitVersion=$(shell sed -n 's|^.*k8s.io/kubernetes \(v[0-9.]*\)$$|\1|p' hack/kubelets/$*.mod)' -modfile=$(CURDIR)/$< -o $@ k8s.io/kubernetes/cmd/kubelet

# It is the only file of its images, so it needs no libraries.
$(LINE_BIN)/sandbox-container: $(wildcard cmd/sandbox/container/*.go)
	@CGO_ENABLED=0 $(GO_BUILD) -o $@ ./cmd/sandbox/container

$(BIN)/controller-gen: hack/tools/codegen/go.mod
	cd hack/tools/codegen && $(GO_BUILD) -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen

$(BIN)/crd-ref-docs: hack/tools/apiref/go.mod
	cd hack/tools/apiref && $(GO_BUILD) -o $@ github.com/elastic/crd-ref-docs

CRD_REF_DOCS = $(BIN)/crd-ref-docs --log-level=ERROR --renderer=markdown --config=hack/tools/apiref/config.yaml --templates-dir=hack/tools/apiref/templates

.PHONY: api-reference
api-reference: $(BIN)/crd-ref-docs ## minutes | Write docs/api from the code: fields, arguments, metrics, flags.
	$(CRD_REF_DOCS) --source-path=./pkg/crd/apps/v1beta1 --output-path=docs/api/workloadspread.md
	$(CRD_REF_DOCS) --source-path=./pkg/crd/policy/v1beta1 --output-path=docs/api/podunavailablebudget.md
	$(CRD_REF_DOCS) --source-path=./pkg/crd/united/v1beta1 --output-path=docs/api/uniteddeployment.md
	$(CRD_REF_DOCS) --source-path=./pkg/crd/sidecar/v1beta1 --output-path=docs/api/sidecarset.md
	$(CRD_REF_DOCS) --source-path=./pkg/crd/federation/v1alpha1 --output-path=docs/api/federatedreplicaset.md
	$(CRD_REF_DOCS) --source-path=./pkg/crd/rules/v1alpha1 --output-path=docs/api/spreadrule.md
	sed -i 's/(#\(targetfilter\|schedulestrategy\))/(workloadspread.md#\1)/; s/ Subset array / [Subset](workloadspread.md#subset) array /' docs/api/spreadrule.md
	cd hack/tools/apiref && $(GO) run ./arguments $(CURDIR) > $(CURDIR)/docs/api/arguments.md
	cd hack/tools/apiref && $(GO) run ./metrics $(CURDIR) > $(CURDIR)/docs/api/metrics.md
	$(GO) test -count=1 -run=TestFlagsAreOnTheirPage $(addprefix ./cmd/,scheduler controller descheduler kubectl-berth sandbox) -args -update
	$(GO) test -count=1 -run=TestTheReadmeOfTheChartHasItsValues ./manifests -args -update

$(BIN)/benchstat: hack/tools/codegen/go.mod
	cd hack/tools/codegen && $(GO_BUILD) -o $@ golang.org/x/perf/cmd/benchstat

$(BIN)/suites: hack/tools/codegen/go.mod $(wildcard hack/tools/codegen/suites/*.go)
	cd hack/tools/codegen && $(GO_BUILD) -o $@ ./suites

$(BIN)/golangci-lint: hack/tools/lint/go.mod
	cd hack/tools/lint && $(GO_BUILD) -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(BIN)/helm: hack/tools/helm/go.mod
	cd hack/tools/helm && $(GO_BUILD) -o $@ helm.sh/helm/v3/cmd/helm

.PHONY: karpenter
karpenter: $(BIN)/karpenter-kwok ## minutes | Build the real Karpenter, with its provider for nodes that KWOK simulates.

$(BIN)/karpenter-kwok: hack/tools/karpenter/go.mod
	cd hack/tools/karpenter && $(GO_BUILD) -o $@ sigs.k8s.io/karpenter/kwok

$(BIN)/kruise-manager: hack/tools/kruise/go.mod
	@echo "building OpenKruise's manager, which takes minutes, once"
	@cd hack/tools/kruise && $(COMPILE) build -ldflags='-s -w' -o $@ github.com/openkruise/kruise

$(BIN)/kruise-specs: hack/tools/kruise/go.mod
	@echo "building OpenKruise's own end-to-end specs"
	@cd hack/tools/kruise && $(COMPILE) test -c -vet=off -ldflags='-s -w' -o $@ github.com/openkruise/kruise/test/e2e

$(BIN)/kruise-next-manager: hack/tools/kruise-next/go.mod
	@echo "building the newest OpenKruise, which takes minutes, once"
	@cd hack/tools/kruise-next && $(COMPILE) build -ldflags='-s -w' -o $@ github.com/openkruise/kruise

$(BIN)/rollouts-controller: hack/tools/rollouts/go.mod
	@echo "building the controller of Argo Rollouts, which takes minutes, once"
	@cd hack/tools/rollouts && $(COMPILE) build -ldflags='-s -w' -o $@ github.com/argoproj/argo-rollouts/cmd/rollouts-controller

$(BIN)/keda-operator: hack/tools/keda/go.mod
	@echo "building KEDA, which takes minutes, once"
	@cd hack/tools/keda && $(COMPILE) build -ldflags='-s -w' -o $(BIN)/keda-adapter github.com/kedacore/keda/v2/cmd/adapter
	@cd hack/tools/keda && $(COMPILE) build -ldflags='-s -w' -o $@ github.com/kedacore/keda/v2/cmd/operator

$(BIN)/kueue: hack/tools/kueue/go.mod
	@echo "building Kueue, which takes minutes, once"
	@cd hack/tools/kueue && $(COMPILE) build -ldflags='-s -w' -o $@ sigs.k8s.io/kueue/cmd/kueue

$(BIN)/vc-scheduler: hack/tools/volcano/go.mod
	@echo "building Volcano, which takes minutes, once"
	@cd hack/tools/volcano && $(COMPILE) build -ldflags='-s -w' -o $(BIN)/vc-controller-manager volcano.sh/volcano/cmd/controller-manager
	@cd hack/tools/volcano && $(COMPILE) build -ldflags='-s -w' -o $@ volcano.sh/volcano/cmd/scheduler

$(BIN)/vpa-updater: hack/tools/vpa/go.mod
	@echo "building the VerticalPodAutoscaler, which takes minutes, once"
	@cd hack/tools/vpa && $(COMPILE) build -ldflags='-s -w' -o $(BIN)/vpa-admission-controller k8s.io/autoscaler/vertical-pod-autoscaler/pkg/admission-controller
	@cd hack/tools/vpa && $(COMPILE) build -ldflags='-s -w' -o $@ k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater

$(BIN)/cert-manager-controller: hack/tools/certmanager/go.mod
	@echo "building cert-manager, which takes minutes, once"
	@cd hack/tools/certmanager && $(COMPILE) build -ldflags='-s -w' -o $(BIN)/cert-manager-cainjector github.com/cert-manager/cert-manager/cmd/cainjector
	@cd hack/tools/certmanager && $(COMPILE) build -ldflags='-s -w' -o $@ github.com/cert-manager/cert-manager/cmd/controller

$(BIN)/prometheus: hack/tools/prometheus/go.mod
	@echo "building Prometheus, which takes minutes, once"
	@cd hack/tools/prometheus && $(COMPILE) build -tags=remove_all_sd -ldflags='-s -w' -o $@ github.com/prometheus/prometheus/cmd/prometheus

$(BIN)/gitops: $(wildcard hack/tools/gitops/*)
	cd hack/tools/gitops && $(GO_BUILD) -o $@ .

# Vale has parsers in C for many languages. They need no optimization to read Markdown, and compile twice as fast without.
$(BIN)/vale: hack/tools/vale/go.mod
	cd hack/tools/vale && CGO_CFLAGS='-O0 -w' $(GO) build -o $@ github.com/vale-cli/vale/v3/cmd/vale

# What the chart shares with manifests/ is copied: a chart can only read its own files.
CHART_SHARES := base/namespace.yaml base/workload-reader.yaml base/users.yaml policy/pods.yaml scheduler/rbac.yaml scheduler/flowschema.yaml scheduler/scheduler-config.yaml \
	controller/rbac.yaml controller/policy.yaml united/rbac.yaml united/united.yaml $(addprefix rules/,rules.berth.dev_clusterspreadrules.yaml rules.berth.dev_spreadrules.yaml rbac.yaml) $(addprefix sidecar/,apps.kruise.io_sidecarsets.yaml rbac.yaml mutatingwebhookconfiguration.yaml validatingwebhookconfiguration.yaml) $(addprefix federation/hub/,clusterprofiles.yaml federation.berth.dev_federatedreplicasets.yaml rbac.yaml policy.yaml) $(addprefix webhook/,service.yaml certificate.yaml rbac.yaml mutatingwebhookconfiguration.yaml validatingwebhookconfiguration.yaml \
	cert-manager/certificate.yaml) $(addprefix budget/,rbac.yaml flowschema.yaml protection.yaml eviction.yaml mutatingwebhookconfiguration.yaml \
	validatingwebhookconfiguration.yaml) descheduler/base/rbac.yaml descheduler/base/policy.yaml $(addprefix observe/,podmonitor.yaml token.yaml rules.yaml dashboard.json)

.PHONY: chart
chart: ## seconds | Copy into charts/berth what it shares with manifests/.
	rm -rf charts/berth/crds charts/berth/files
	mkdir -p charts/berth/crds && cp manifests/crd/*_*.yaml charts/berth/crds/
	for file in $(CHART_SHARES); do mkdir -p charts/berth/files/$$(dirname $$file) && cp manifests/$$file charts/berth/files/$$file || exit 1; done

.PHONY: lines
lines: ## seconds | Derive the modules of every line in hack/lines from go.mod and hack/tools/go.mod.
	for line in $(LINES); do $(GO) run ./hack/lines/derive $$line || exit 1; done

.PHONY: generate
generate: lines $(BIN)/controller-gen ## minutes | Regenerate deepcopy functions, CRDs and docs/api.
	$(BIN)/controller-gen object:headerFile=hack/boilerplate.go.txt paths=./pkg/crd/... paths=./pkg/plugins/...
	$(MAKE) --no-print-directory api-reference
	$(BIN)/controller-gen crd paths=./pkg/crd/... output:crd:dir=manifests/crd
	mv manifests/crd/federation.berth.dev_*.yaml manifests/federation/hub/
	mv manifests/crd/*_sidecarsets.yaml manifests/sidecar/
	mv manifests/crd/rules.berth.dev_*.yaml manifests/rules/
	for file in manifests/crd/*_*.yaml; do sed -e '/^spec:$$/r hack/crd-conversion.yaml' -e '/^  annotations:$$/r hack/crd-annotations.yaml' $$file > $$file.next && mv $$file.next $$file || exit 1; done
	$(MAKE) --no-print-directory chart

##@ Test

# DOCUMENTS types the commands of the pages, and the other suites would change what these print. So it runs by itself, as ALONE does.
DOCUMENTS := ./test/documents
# NODES runs kubelets and containers, which have to answer in time. So it runs by itself too.
NODES := ./test/kubelet
# ON_NODES are tests of test/budget that run on real nodes too, from the same code.
ON_NODES := ^(TestADrainCompletesByItself|TestADrainOfTheOnlyPodMakesANewOneFirst|TestARolloutCompletesUnderABudget|TestTwoDrainsAtOnceReplaceAllPods)$$
# EARLIER are versions whose kubelets may join a cluster of go.mod's version.
EARLIER := $(patsubst hack/kubelets/%.mod,%,$(wildcard hack/kubelets/*.mod))
# CONTROL_PLANES are all other packages of tests below test: on control planes, and of the repository. On a fresh clone no times are known, so the longest come first.
CONTROL_PLANES = $(addprefix ./test/,integration budget install) $$($(GO) list ./test/... | grep -v -e /test/documents$$ -e /test/ui$$ -e /test/kubelet$$)
# NEEDED are those that each change needs: for each part of the product the suites that have found faults.
NEEDED := $(addprefix ./test/,integration budget faults watch descheduler sidecar federation members layering checker linear robustness)
UNITS := ./cmd/... ./internal/... ./manifests/... ./pkg/... ./test/testkit/...

# Control planes of tests collect their garbage less often, which costs memory and saves a tenth of the CPU.
test test-all test-flaky: export GOGC := 400

.PHONY: test
test: tools build $(BIN)/suites ## 8 to 15 min | Run what each change needs: units, and the short suites on a real control plane.
	$(SUITES) -packages='$(UNITS)' -- $(LEAN)
	$(SUITES) -packages='$(NEEDED)' -- $(LEAN) -short -count=1 -timeout=30m -skip='$(ALONE)'

# In test-all, the packages that are left out of other lines have no test files, and are built by go vet.
.PHONY: test-all
test-all: tools build check-lines $(BIN)/helm $(BIN)/release $(BIN)/karpenter-kwok $(BIN)/kruise-manager $(BIN)/rollouts-controller $(BIN)/suites ## 25 to 45 min | Run all tests, as CI does: also the long ones, the other Kubernetes lines, release, chart, sandbox, page and documents.
	$(GO) vet ./...
	cd hack/tools/release && $(GO) test ./...
	cd test/upstream && $(GO) test ./...
	$(SUITES) -packages='$(UNITS)' -- $(LEAN)
	ui=$$(hack/browser.sh >&2 && echo ./test/ui || echo "test/ui is left out, it needs a browser; see 'make test-ui'" >&2); \
	$(SUITES) -packages="$(CONTROL_PLANES) $$ui" -- $(LEAN) -count=1 -timeout=60m -skip='$(ALONE)'
	$(SUITES) -packages=./test/budget -- $(LEAN) -count=1 -timeout=10m -run='$(ALONE)' -args -slack=4
	$(SUITES) -packages=./test/install -- $(LEAN) -count=1 -timeout=10m -run='^$(FIRST_MINUTE)$$'
	@if hack/containers.sh run; then $(MAKE) --no-print-directory kubelet && $(SUITES) -packages=$(NODES) -- $(LEAN) -count=1 -timeout=10m && \
	$(SUITES) -packages=./test/budget -- $(LEAN) -count=1 -timeout=10m -run='$(ON_NODES)' -args -kubelets=3; \
	else echo "test/kubelet is left out; see 'make test-kubelet'" >&2; fi
	$(SUITES) -packages=$(DOCUMENTS) -- $(LEAN) -count=1 -timeout=30m -skip='$(ALONE)'

# N is how often test-flaky runs each suite.
N ?= 20

.PHONY: test-flaky
test-flaky: tools build $(BIN)/helm $(BIN)/release $(BIN)/karpenter-kwok $(BIN)/kruise-manager $(BIN)/rollouts-controller $(BIN)/suites ## hours | Run every suite on a control plane N=20 times beside two busy cores, and count which tests failed. Each is a fault of the product or of the test.
	$(SUITES) -rounds=$(N) -load=2 -packages="$(CONTROL_PLANES)" -- $(LEAN) -count=1 -timeout=60m -skip='$(ALONE)'

.PHONY: test-kubelet
test-kubelet: tools build kubelet ## 5 min | Run Berth on real nodes, whose containers run on this machine. It needs root, and installs Debian's containerd, runc and network plugins if they are not there.
	$(GO) test -count=1 -timeout=10m -v $(NODES)
	$(GO) test -count=1 -timeout=10m -v -run='$(ON_NODES)' ./test/budget -args -kubelets=3

.PHONY: test-skew
test-skew: tools build kubelet $(EARLIER:%=$(BIN)/kubelets/%/kubelet) ## 20 min | Run test/kubelet on nodes whose kubelets are of the two versions before that of the line. docs/compatibility.md says what does not hold there.
	failed=; for version in $(EARLIER); do $(GO) test -count=1 -timeout=10m -v $(NODES) -args -kubelet=$(BIN)/kubelets/$$version/kubelet || failed="$$failed $$version"; done; [ -z "$$failed" ]

.PHONY: browser
browser: ## seconds | See that there is a browser for the tests of the page: one on the PATH, or else the Debian package chromium.
	hack/browser.sh

.PHONY: test-ui
test-ui: tools build browser ## minutes | Look at the page with a browser, on a real control plane.
	$(GO) test -count=1 -v ./test/ui

.PHONY: test-unit
test-unit: ## minutes | Run the tests that need no control plane. With LINE=1.37 those of packages that link kube-scheduler's code.
	$(GO) test $(LINE_FLAGS) $(if $(LINE),$(LINE_PACKAGES),./cmd/... ./manifests/... ./pkg/...)

.PHONY: test-integration
test-integration: tools build ## minutes | Run the tests on a real control plane; SCENARIOS=regexp picks scenarios, LINE=1.37 Kubernetes 1.37.
	$(LINE_ENV) $(GO) test -count=1 -timeout=20m -v $(if $(SCENARIOS),-run 'TestScenarios/$(SCENARIOS)') ./test/integration

# What a line shares with the product is tested with the product. The rest is what differs by tag, and what is built on the code that differs.
.PHONY: check-lines
check-lines: $(BIN)/suites ## minutes | Build and test for every line of hack/lines the packages that link kube-scheduler's code.
	for line in $(LINES); do $(MAKE) --no-print-directory check-line LINE=$$line || exit 1; done

.PHONY: check-line
check-line: build $(BIN)/suites
	$(LINE_ENV) $(SUITES) -packages="$(LINE_PACKAGES)" -- $(LEAN)

.PHONY: test-line
test-line: tools build $(BIN)/helm $(BIN)/release $(BIN)/karpenter-kwok ## an hour | With LINE=1.37: check the line, run all tests that need its control plane, and change to it from the line before.
	$(MAKE) --no-print-directory check-line LINE=$(LINE)
	$(MAKE) --no-print-directory build LINE=
	$(LINE_ENV) $(GO) test -count=1 -timeout=20m -run=TestChangeOfTheLine ./test/install
	$(GO) test -count=1 -timeout=20m -run=TestTheTutorialOfGangs ./test/documents
	$(LINE_ENV) $(GO) test -count=1 -timeout=10m -run=TestNodesAreMadeForAWholeGang ./test/autoscaler
	$(LINE_ENV) $(GO) test -p 1 -count=1 -timeout=20m -skip='$(ALONE)' $(addprefix ./test/,integration descheduler budget sidecar federation members faults watch soak)
	$(LINE_ENV) $(GO) test -count=1 -timeout=10m -run='$(ALONE)' ./test/budget -args -slack=4

##@ Test one thing for longer

# The detector writes a file for each process in which it finds a race. It makes programs up to ten times slower, so tests may fail by their clocks: the files count.
.PHONY: test-upstream
test-upstream: tools ## an hour | Run Kubernetes' own integration tests of the scheduler on a scheduler with Berth's plugins; UPSTREAM_FLAGS, e.g. "-stock", or "-packages=k8s.io/kubernetes/test/integration/scheduler/bind".
	cd test/upstream && PATH="$(BIN):$$PATH" $(GO) run . $(UPSTREAM_FLAGS) -- -count=1 -timeout=40m

.PHONY: test-race
test-race: tools ## an hour | Run the suites of the control plane with Berth's programs built to find data races, and list what they find; SUITE="./test/budget" picks one.
	@mkdir -p $(BIN)/race && cp -f --link $(CONTROL_PLANE) $(BIN)/race/ && rm -rf $(CURDIR)/.race && mkdir $(CURDIR)/.race
	$(call build-commands,$(LINKED) $(CLIENTS),/race,-race)
	@cp cmd/kubectl-berth/kubectl_complete-berth $(BIN)/race/
	-BERTH_LINE=race GORACE="log_path=$(CURDIR)/.race/report" $(GO) test -p 1 -count=1 -timeout=40m -skip='$(ALONE)' $(or $(SUITE),$(addprefix ./test/,integration budget descheduler sidecar federation))
	@cat $(CURDIR)/.race/* 2>/dev/null && exit 1 || echo "no data race"

.PHONY: test-takeover
test-takeover: tools build ## minutes | Kill the leading scheduler ten times in the middle of 2,000 pods.
	$(GO) test -count=1 -timeout=30m -v ./test/integration -run TestTheNextLeader -takeovers=10 -burst=2000

.PHONY: test-budget
test-budget: tools build ## minutes | Storms of deletions, evictions and updates against three guards of one PodUnavailableBudget.
	$(GO) test -count=1 -timeout=20m -v ./test/budget -storm=20s -clients=200 -long

# MINUTES is how long make test-autoscaler and make soak disturb the cluster, and make test-tenant measures.
MINUTES ?= 60

.PHONY: test-autoscaler
test-autoscaler: tools build $(BIN)/karpenter-kwok ## MINUTES | Berth beside the real Karpenter: the cases of the documents, and then random scaling, rollouts, lost nodes and stock-outs for MINUTES=60.
	$(GO) test -count=1 -timeout=0 -v ./test/autoscaler -disturbed=$(MINUTES)m

.PHONY: test-neighbours
test-neighbours: OF_KRUISE := TestACloneSetUnderASpreadAndABudget|TestQuotasOfEachRevisionOfACloneSet|TestAnAdvancedStatefulSetUnderASpreadAndABudget|TestUnitedDeploymentsOfTheKindsOfOpenKruise|TestTwoWebhooksChangePods
test-neighbours: tools build $(BIN)/kruise-manager $(BIN)/kruise-next-manager $(BIN)/kruise-specs $(BIN)/rollouts-controller $(BIN)/keda-operator $(BIN)/kueue $(BIN)/vc-scheduler $(BIN)/vpa-updater $(BIN)/gitops $(BIN)/prometheus $(BIN)/cert-manager-controller ## minutes | Berth beside the real OpenKruise, Argo Rollouts, KEDA, Kueue, Volcano, VerticalPodAutoscaler, Prometheus, cert-manager, the autoscaler of Kubernetes, and the comparisons of Argo CD and Flux: workloads under spreads and budgets, as children of UnitedDeployments, and the migration there and back.
	$(LINE_ENV) $(GO) test -count=1 -timeout=20m -v -skip='$(ALONE)' ./test/neighbours
	$(LINE_ENV) $(GO) test -count=1 -timeout=10m -v -run='^($(OF_KRUISE))$$' ./test/neighbours -args -next
	$(LINE_ENV) $(GO) test -count=1 -timeout=30m -v -run='^($(NOT_IN_CI))$$' ./test/neighbours -args -keda
	$(LINE_ENV) $(GO) test -count=1 -timeout=5m -v -run='^($(NOT_IN_CI))$$' ./test/install

.PHONY: test-descheduler
test-descheduler: tools build ## minutes | The descheduler on a real control plane, with 1,500 random pods to compare its filters with the scheduler on, 200 random spreads to compare the what-if with, and a subset that flaps for two hours of its clock.
	$(GO) test -count=1 -timeout=30m -v ./test/descheduler -parity-pods=1500 -simulated-minutes=120

.PHONY: test-faults
test-faults: tools build ## 6 min | Spoil the scheduler's binds in every way, ten bursts with a seed each.
	$(GO) test -count=1 -timeout=30m -v ./test/faults -rounds=10

.PHONY: test-watch-faults
test-watch-faults: tools build ## 40 min | Let each component see the past, skip events, list again, and die after each of its writes; docs/robustness.md says more.
	$(GO) test -count=1 -timeout=30m -v ./test/watch -run WhateverItSees -rounds=10
	for seed in 1 2; do $(GO) test -count=1 -timeout=30m -v ./test/watch -run TheSchedulerGoesOn -every-write=1 -seed=$$seed || exit 1; done
	for seed in 1 2 3 4 5; do $(GO) test -count=1 -timeout=30m -v ./test/watch -run TheControllerGoesOn -every-write=5 -seed=$$seed || exit 1; done
	$(GO) test -count=1 -timeout=10m -v ./test/federation -run TestTheHubHoldsTheTotalWhateverItSees -faults=4m

.PHONY: test-bad-members
test-bad-members: tools build ## 7 min | Let a member of a federation be dead, slow, lying, read-only, older and renamed, and the hub its own member, at random for five minutes, and see that the others are not harmed.
	$(GO) test -count=1 -timeout=15m -v ./test/federation -run TestABadMemberHarmsNoOther -faults=5m

.PHONY: test-sidecars
test-sidecars: tools build ## 4 min | Change, break and scale pods with SidecarSets and a budget for three minutes, while the leading controller is killed again and again.
	$(GO) test -count=1 -timeout=10m -v ./test/sidecar -run TestLimitsHoldWhileLeadersAreKilled -faults=3m

.PHONY: soak
soak: tools build ## MINUTES | Do everything to a cluster at once, under the eyes of all watchers, for MINUTES=60, and see that memory does not grow.
	$(GO) test -count=1 -timeout=0 -v ./test/soak -soak=$(MINUTES)m

# An hour is for the others. Seconds are too few for a p99, and in less than four minutes the hostile tenant has fewer objects.
test-tenant: MINUTES = 5

.PHONY: test-tenant
test-tenant: tools build ## MINUTES | A hostile tenant does its worst for a third of MINUTES=5 beside another one, whose latencies are compared with those beside an equal flood that has no part in Berth.
	$(GO) test -count=1 -timeout=$(MINUTES)0m -v ./test/tenant -attack=$(MINUTES)m

.PHONY: test-compatibility
test-compatibility: tools build ## 10 min | Run the storms, take-overs and spoilt binds with an installation that is compatible with OpenKruise.
	BERTH_COMPATIBILITY=kruise $(GO) test -count=1 -timeout=30m -v ./test/faults -rounds=3
	BERTH_COMPATIBILITY=kruise $(GO) test -count=1 -timeout=20m -v ./test/integration -run 'Compatible|TheNextLeader|TheFirstPodWaits|KeepsMinimums|NoPodOfANewDeployment|PickAtTheSameTime'

.PHONY: test-rights
test-rights: tools build $(BIN)/helm $(BIN)/release ## half an hour | Find out from audit logs which rights of Berth's roles the tests use, and write it into test/install/rights.txt.
	rm -rf $(AUDIT_DIR) && mkdir -p $(AUDIT_DIR)
	BERTH_AUDIT_DIR=$(AUDIT_DIR) $(GO) test -count=1 -timeout=20m $(addprefix ./test/,install integration descheduler faults sidecar federation rules) -skip TestEveryRightHasAUse
	BERTH_AUDIT_DIR=$(AUDIT_DIR) $(GO) test -count=1 -timeout=10m ./test/budget -slack=4
	$(GO) test -count=1 ./test/install -run TestEveryRightHasAUse -audit-logs=$(AUDIT_DIR) -update

.PHONY: test-release
test-release: tools build $(BIN)/helm $(BIN)/release ## an hour | Make the releases of all lines twice, from two clones in different directories, and compare them; install that of the line, and upgrade to it from the programs of the version before.
	rm -rf $(TWICE) && mkdir -p $(TWICE)
	git clone --quiet . $(TWICE)/one && git clone --quiet . $(TWICE)/the-other
	for clone in one the-other; do $(call release-lines,-root $(TWICE)/$$clone -version v0.0.0-alpha.0 $(RELEASE_TEST_PLATFORMS),$(TWICE)/$$clone) || exit 1; done
	diff $(TWICE)/one/dist-assets/SHA256SUMS $(TWICE)/the-other/dist-assets/SHA256SUMS
	cd $(TWICE)/one/dist-assets && sha256sum --check --quiet SHA256SUMS
ifeq ($(LINE),)
	git clone --quiet . $(TWICE)/previous && git -C $(TWICE)/previous checkout --quiet $(PREVIOUS) && $(MAKE) -C $(TWICE)/previous build
	$(GO) test -count=1 -timeout=20m -v ./test/install -run 'Release|Archive|Sandbox|PreviousVersion' -args -dist=$(TWICE)/one/dist -previous-programs=$(TWICE)/previous/bin
else
# No previous version has the line.
	$(LINE_ENV) $(GO) test -count=1 -timeout=20m -v ./test/install -run 'Release|Archive' -args -dist=$(TWICE)/one/dist-$(LINE)
endif
	rm -rf $(TWICE)

# Of the lines that are not tested, test-release makes the programs for this machine only, because each line takes a quarter of an hour to compile for all platforms.
RELEASE_TEST_PLATFORMS = $$(test "$$line" = "$(LINE)" || $(GO) env GOOS GOARCH | paste -sd/ | sed 's|.*|-nodes=& -plugins=&|')

.PHONY: test-worlds
test-worlds: ## hours | Search every history of larger small worlds: of the ledger with three pods and several kinds of trouble at a time, of a budget with three requests, and of moves with all kinds of trouble. docs/robustness.md says what they are.
	$(GO) test -count=1 -timeout=24h -v ./pkg/budget -run TestEveryHistoryOfASmallWorld -args -deep
	$(GO) test -count=1 -timeout=24h -v ./pkg/ledger -run TestEveryHistoryOfASmallWorld -args -deep
	$(GO) test -count=1 -timeout=24h -v ./pkg/moves -run TestEveryHistoryOfASmallWorld -args -deep

.PHONY: robustness-table
robustness-table: ## half an hour | Break a copy of the code in known ways, find out which suites notice it, and write docs/api/detected-faults.md.
	$(GO) run ./test/robustness

.PHONY: robustness-clusters
robustness-clusters: tools build ## half an hour | Build programs with known faults, find out whether the suites on a control plane notice them, and write docs/api/detected-faults.md.
	$(GO) run ./test/robustness -clusters $(BIN)

.PHONY: fuzz
fuzz: ## 6 min | Fuzz what reads input of users, a minute each: spreads, patches, constraints, UnitedDeployments, reviews, budgets.
	$(GO) test -run='^$$' -fuzz='^FuzzCompile$$' -fuzztime=60s ./pkg/subset
	$(GO) test -run='^$$' -fuzz='^FuzzApplyPatch$$' -fuzztime=60s ./pkg/subset
	$(GO) test -run='^$$' -fuzz='^FuzzConstraints$$' -fuzztime=60s ./pkg/subset
	$(GO) test -run='^$$' -fuzz='^FuzzCompile$$' -fuzztime=60s ./pkg/united
	$(GO) test -run='^$$' -fuzz='^FuzzReview$$' -fuzztime=60s ./pkg/webhook
	$(GO) test -run='^$$' -fuzz='^FuzzDecide$$' -fuzztime=60s ./pkg/budget

##@ Measure

.PHONY: bench
bench: tools build ## minutes | Measure the model, the plugin's share of a cycle, and a sandbox beside the stock scheduler.
	$(GO) test -run='^$$' -bench=. -benchmem ./pkg/subset ./pkg/plugins/...
	$(GO) run ./test/bench

.PHONY: bench-scheduler
bench-scheduler: tools build $(BIN)/kube-scheduler-alone $(BIN)/benchstat ## an hour | Compare the scheduler with the stock one on 5,000 nodes and 10,000 pods; BENCH_FLAGS, e.g. "-nodes 500 -pods 1000 -pairs 2".
	$(GO) run ./test/bench/scheduler -out $(BENCH_OUT) $(BENCH_FLAGS)
	$(BIN)/benchstat $(BENCH_OUT)/stock.txt $(BENCH_OUT)/berth.txt

# UPSTREAM_SIZES are those of Kubernetes' own performance tests. The throughput is sampled each second, without the last second: smaller sizes give one sample.
UPSTREAM_SIZES ?= 5000Nodes_10000Pods|5000Nodes_5000Pods|1Node_10000GatedPods
UPSTREAM_CASES ?= SchedulingBasic|SchedulingNodeAffinity|TopologySpreading|SchedulingWithMixedChurn|SchedulingWhileGated
UPSTREAM_ROUNDS ?= 3

.PHONY: bench-upstream
bench-upstream: tools $(BIN)/benchstat ## an hour | Run Kubernetes' own benchmarks of the scheduler, in turns on the stock scheduler and on one with Berth's plugins and no spread; then its case with affinity with pods of a ReplicaSet, in turns with stock plugins and with a spread in place of the affinity; UPSTREAM_ROUNDS=3, UPSTREAM_CASES='SchedulingBasic|TopologySpreading'.
	@mkdir -p $(BENCH_OUT) && rm -f $(BENCH_OUT)/upstream-*.txt
	cd test/upstream && for round in $$(seq $(UPSTREAM_ROUNDS)); do for turn in stock berth owner spread; do \
		PATH="$(BIN):$$PATH" ARTIFACTS=$(BENCH_OUT) KUBE_CACHE_MUTATION_DETECTOR=false $(GO) run . $$(case $$turn in stock|owner) echo -stock; esac) -packages=./perf -- \
		-run='^$$' -bench='/^($(UPSTREAM_CASES))$$/^($(UPSTREAM_SIZES))$$' -benchtime=1ns -timeout=60m -perf-scheduling-label-filter=-none -data-items-dir=$(BENCH_OUT) \
		$$(case $$turn in owner|spread) echo -$$turn; esac) >>$(BENCH_OUT)/upstream-$$turn.txt || exit 1; done; done
	cd $(BENCH_OUT) && for turns in 'stock berth' 'owner spread'; do $(BIN)/benchstat -filter='.unit:SchedulingThroughput/Average' $$(printf 'upstream-%s.txt ' $$turns); done

.PHONY: bench-webhook
bench-webhook: tools build ## minutes | Measure what admission costs: creations with and without it, a Deployment of 3,000, memory for 1,000 spreads; LINE=1.37 for Kubernetes 1.37.
	$(LINE_ENV) $(GO) run ./test/bench/controller $(BENCH_FLAGS)

.PHONY: bench-controller
bench-controller: tools build ## minutes | Measure the status controller with 1,000 spreads of 30 pods: at rest, after a restart, one change at a time, in a burst.
	$(GO) run ./test/bench/controller -only status $(BENCH_FLAGS)

.PHONY: bench-cluster
bench-cluster: tools build ## minutes | Measure what Berth costs the API server for objects that do not use Berth, beside a control plane without Berth; BENCH_FLAGS, e.g. "-protected 5000".
	$(GO) run ./test/bench/cluster $(BENCH_FLAGS)

.PHONY: bench-united
bench-united: tools build ## minutes | Measure UnitedDeployments: 100 of them at rest, one change at a time, and one that grows beside plain Deployments.
	$(GO) run ./test/bench/controller -only united $(BENCH_FLAGS)

.PHONY: bench-federation
bench-federation: tools build ## minutes | Measure FederatedReplicaSets: a scale-up beside ReplicaSets scaled by hand, the hub at rest, and a pass over 500 clusters and 2,000 objects, which needs 14 GiB.
	$(GO) run ./test/bench/federation $(BENCH_FLAGS)
	GOMEMLIMIT=12GiB $(GO) test -run='^$$' -bench=Pass -benchtime=2x -benchmem -timeout=60m ./pkg/controller/federation

.PHONY: bench-sidecar
bench-sidecar: tools build ## minutes | Measure SidecarSets: injection beside 50 sets, and an update of 3,000 pods in place, with each write counted; BENCH_FLAGS, e.g. "-pods 300".
	$(GO) test -run='^$$' -bench=Injection -benchtime=3000x ./pkg/webhook
	$(GO) run ./test/bench/sidecar $(BENCH_FLAGS)

.PHONY: bench-descheduler
bench-descheduler: tools build ## minutes | Measure a cycle of the descheduler over 500 nodes, 5,000 pods and 200 spreads: time and memory.
	$(GO) run ./test/bench/descheduler $(BENCH_FLAGS)

.PHONY: bench-scale
bench-scale: tools build ## minutes | Measure the scheduler's plugin with 5,000 spreads, 100,000 pods and 5,000 nodes, beside a stand-in for the API server; BENCH_FLAGS, e.g. "-spreads 200 -nodes 100". Then 1,000 Deployments under one rule on a control plane, beside as many spreads by name.
	$(GO) run ./test/bench/scale $(BENCH_FLAGS)
	$(GO) test -count=1 -v ./test/rules -run TestManyWorkloads -args -workloads=1000

##@ Check, clean

.PHONY: lint
lint: $(BIN)/golangci-lint lint-prose ## minutes | Run the linters.
	$(BIN)/golangci-lint run ./...
	$(GO) run ./hack/columns
	hack/commit-msg.sh

.PHONY: lint-prose
lint-prose: $(BIN)/vale ## seconds | Check the prose of the documents by the rules in hack/vale.
	$(BIN)/vale --no-global $$(git ls-files '*.md')

.PHONY: verify
verify: generate lint test-all ## an hour | Regenerate, lint, test, and require a clean tree.
	@git diff --exit-code || { echo "generated files differ: commit the result of 'make generate'"; exit 1; }

.PHONY: clean
clean: ## seconds | Remove what was built.
	rm -rf $(BIN) dist dist-* $(TWICE) .sandbox .bench $(AUDIT_DIR)
