# Everything a fresh machine needs is in `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test quick attacks integration nightly tools lint bench golden docs alerts xids dashboards dashboards-data story pictures report-data report-pictures page terminal-pictures fuzz scenarios monitoring kubernetes chart chart-oldest chart-files fleet podresources peers lock image release release-image release-index release-dry-run clean

$(INSTALLED): pyproject.toml
	@echo "Setting up $(VENV) with what tests need, which takes a minute or two."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

RUNS := $(VENV)/runs
$(RUNS): pyproject.toml
	@echo "Setting up $(VENV), which takes half a minute."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[cli]'
	touch $@

# Ctrl-C is how it is ended.
demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(RUNS))  ## play the recorded incidents, no GPU needed
	@trap : INT; $(BIN)/gpunode demo $(DEMO) || test $$? -eq 130

# Each test is in one of four groups: tests/test_groups.py.
test: lint quick  ## every quick check; the last line says what passed, and what could not run and why

quick: $(INSTALLED)  ## the same without lint, which takes Python 3.11, as do tests of the dashboards
	$(BIN)/pytest -n auto -o faulthandler_timeout=600 -m "not attack and not integration and not nightly"

attacks: $(INSTALLED)  ## attack, starve and time daemons and parsers: on a machine with nothing else to do
	$(BIN)/pytest -n auto -m "attack and not nightly"

integration: $(INSTALLED)  ## the page in Chromium, the image, a Kubernetes control plane, incidents through Prometheus
	$(BIN)/pytest -n auto --dist=loadfile --no-loadscope-reorder --max-worker-restart=1 -m "integration and not attack and not nightly"

nightly: $(INSTALLED)  ## what no commit waits for
	$(BIN)/pytest -n auto -o faulthandler_timeout=3600 -m "nightly"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)  ## figures for docs/performance.md; on a machine with GPUs: make bench BENCH="anywhere gpu"
	$(BIN)/python -m bench $(BENCH)

golden: $(INSTALLED)  ## rewrite the golden expositions
	GPUNODE_REWRITE_GOLDEN=1 $(BIN)/pytest -q tests/export/test_exposition.py tests/host/test_host.py

docs: $(INSTALLED)  ## rewrite what is generated
	$(BIN)/python -m gpunode.catalogue docs
	$(BIN)/python -m helm.generate
	$(BIN)/python -m tests.docs.compatibility docs/compatibility.md
	$(BIN)/python -m tests.docs.figures docs/figures

alerts: $(INSTALLED)  ## rewrite what derives from the rules: docs/thresholds.md and the chart's schema
	$(BIN)/python -m alerts.document
	$(BIN)/python -m helm.generate

xids: $(INSTALLED)  ## rewrite the table of XIDs: make xids CATALOGUE=Xid-Catalog.xlsx, downloaded from NVIDIA
	$(BIN)/python -m tests.corpus.xid_table $(CATALOGUE)

dashboards: $(INSTALLED)  ## rewrite the JSON of Grafana's dashboards
	$(BIN)/python -m dashboards.generate
	$(BIN)/python -m helm.generate

chart-files: $(INSTALLED)  ## rewrite what the Helm chart has from elsewhere
	$(BIN)/python -m helm.generate

chart: $(INSTALLED) kubernetes  ## test the Helm chart with Helm and a real Kubernetes API server
	$(BIN)/pytest tests/helm/test_chart.py tests/helm/test_chart_cluster.py tests/helm/test_chart_profiles.py

page: $(INSTALLED)  ## take the pictures of docs/page.md, with Chromium
	$(BIN)/python -m tests.export.page.pictures

terminal-pictures: $(INSTALLED)  ## take the pictures of docs/tour.md, with Chromium
	$(BIN)/python -m tests.cli.pictures

dashboards-data: $(INSTALLED) monitoring  ## a Prometheus on port 9090 with incidents for the dashboards
	$(BIN)/python -m tests.dashboards.queries --stay --port 9090

story: $(INSTALLED) monitoring  ## a Prometheus on port 9090 with a fleet of five incidents, for the pictures of the dashboards
	$(BIN)/python -m tests.dashboards.story --port 9090

pictures: $(INSTALLED)  ## take the pictures of docs/dashboards.md: make pictures GRAFANA=http://127.0.0.1:3000
	$(BIN)/python -m tests.dashboards.pictures $(GRAFANA)

report-data: $(INSTALLED) monitoring  ## a Prometheus on port 9091 with eight weeks of a fleet for the report
	$(BIN)/python -m bench.review --port 9091

report-pictures: $(INSTALLED)  ## take the pictures of docs/report.md: make report-pictures PROMETHEUS=http://127.0.0.1:9091, with Chromium and poppler-utils
	$(BIN)/python -m tests.report.pictures $(PROMETHEUS)

fuzz: $(INSTALLED)  ## ten minutes of fuzzing for each parser; for less: make fuzz FUZZ="--seconds 60 tape"
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	nice $(BIN)/python -m tests.fuzz $(FUZZ)

scenarios: $(INSTALLED)  ## who is notified of what happens to a fleet: tests/alerts/scenarios
	$(BIN)/python -m tests.alerts.scenarios.play

MONITORING := .monitoring
BUILD := alerts/build.sh $(CURDIR)/$(MONITORING)

# Prometheus numbers its Go module 0.X for 3.X. Without service discovery it builds in minutes.
monitoring: $(addprefix $(MONITORING)/, prometheus alertmanager vmalert pint otelcol grafana crane actionlint training llama)  ## Prometheus 3, Alertmanager, VictoriaMetrics, pint, OpenTelemetry's Collector, a registry and actionlint, built with Go, and what Grafana draws tables with, libraries of training code and llama.cpp's server
$(MONITORING)/prometheus:
	$(BUILD) github.com/prometheus/prometheus v0.313.5 cmd/prometheus cmd/promtool
$(MONITORING)/alertmanager:
	$(BUILD) github.com/prometheus/alertmanager v0.28.1 cmd/alertmanager cmd/amtool
$(MONITORING)/vmalert:
	$(BUILD) github.com/VictoriaMetrics/VictoriaMetrics v1.93.0 app/vmalert app/victoria-metrics
$(MONITORING)/pint:
	$(BUILD) github.com/cloudflare/pint v0.62.0 cmd/pint
$(MONITORING)/otelcol:
	docs/opentelemetry/build.sh $(CURDIR)/$(MONITORING) v0.160.0 v1.66.0

$(MONITORING)/grafana: tests/dashboards/grafana/package-lock.json
	mkdir -p $@ && cp tests/dashboards/grafana/package*.json $@
	npm ci --prefix $@ --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

$(MONITORING)/crane:
	$(BUILD) github.com/google/go-containerregistry v0.22.1 cmd/registry cmd/crane
$(MONITORING)/actionlint:
	$(BUILD) github.com/rhysd/actionlint v1.7.12 cmd/actionlint

# Beside Debian's PyTorch, so that pip does not download one with CUDA.
$(MONITORING)/training: tests/client/frameworks/requirements.txt
	/usr/bin/python3 -m venv --clear --system-site-packages $@
	$@/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	touch $@

$(MONITORING)/llama: tests/serving/llama/requirements.txt | $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --only-binary :all: --target $@ --requirement $<
	touch $@

peers: $(addprefix $(MONITORING)/, nvitop node_exporter)  ## exporters that make bench BENCH=peers runs beside gpunode
$(MONITORING)/nvitop:
	$(PYTHON) -m venv $@ && $@/bin/pip install --quiet --disable-pip-version-check nvitop-exporter==1.7.2
$(MONITORING)/node_exporter:
	$(BUILD) github.com/prometheus/node_exporter v1.9.1 ""

OPERATOR := v0.85.0
kubernetes: $(addprefix $(MONITORING)/, helm kube-apiserver)  ## Helm, and a Kubernetes control plane with etcd, built with Go
$(MONITORING)/helm:
	$(BUILD) helm.sh/helm/v4 v4.2.4 cmd/helm
$(MONITORING)/kube-apiserver:
	helm/build.sh $(CURDIR)/$(MONITORING) v1.37.2 $(OPERATOR)
$(MONITORING)/oldest/kube-apiserver: # the oldest Kubernetes that the chart is for
	helm/build.sh $(CURDIR)/$(MONITORING)/oldest v1.25.0 $(OPERATOR) kube-apiserver
chart-oldest: $(INSTALLED) kubernetes $(MONITORING)/oldest/kube-apiserver  ## the same on the oldest API server, which takes minutes to build
	KUBE_APISERVER=$(MONITORING)/oldest/kube-apiserver $(BIN)/pytest -n 0 tests/helm/test_chart_cluster.py

$(MONITORING)/promtool:
	$(BUILD) github.com/prometheus/prometheus v0.313.5 cmd/promtool
$(MONITORING)/amtool:
	$(BUILD) github.com/prometheus/alertmanager v0.28.1 cmd/amtool

tools: $(addprefix $(MONITORING)/, promtool amtool)  ## what tests of the rules take, built with Go in some minutes

fleet: $(INSTALLED)  ## 1,250 simulated nodes before one Prometheus
	$(BIN)/python -m bench.fleet

podresources: $(INSTALLED)  ## rewrite what is generated from the kubelet's protocol
	cd exporter/gpunode/node/kubelet && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. podresources.proto

lock: $(INSTALLED)  ## newest versions of what the image carries and of what builds a release, with hashes
	$(BIN)/uv pip compile --quiet --upgrade $(LOCK)
	$(BIN)/uv pip compile --quiet --upgrade $(LOCK_OF_RELEASE)

# Adds what pyproject.toml newly asks for; otherwise the versions stay. The lock holds for every
# Python and architecture that the project supports.
docker/requirements.txt: pyproject.toml $(INSTALLED)
	$(BIN)/uv pip compile --quiet $(LOCK)

docker/release.txt: pyproject.toml $(INSTALLED)
	$(BIN)/uv pip compile --quiet $(LOCK_OF_RELEASE)

LOCKED := pyproject.toml --universal --python-version 3.10 --generate-hashes --no-header --no-annotate --no-emit-index-url
LOCK := $(LOCKED) --extra cli --extra stacks --output-file docker/requirements.txt
LOCK_OF_RELEASE := $(LOCKED) --extra release --output-file docker/release.txt

ENGINE ?= docker
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' exporter/gpunode/__init__.py)
# All that an image says of time is the time of its commit, so that two builds are the same:
# https://reproducible-builds.org/docs/source-date-epoch/
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
REVISION ?= $(shell git rev-parse HEAD)
image: export SOURCE_DATE_EPOCH := $(SOURCE_DATE_EPOCH)
image:  ## the image, with docker, or ENGINE=podman or buildah
	$(ENGINE) build $(if $(filter docker,$(ENGINE)),--provenance=false,--timestamp=$(SOURCE_DATE_EPOCH)) $(IMAGE_OPTIONS) \
	  --file docker/Dockerfile --tag gpunode --tag gpunode:$(VERSION) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
	  --build-arg CREATED=$$(date --utc --date=@$(SOURCE_DATE_EPOCH) +%FT%TZ) .

# A release: docs/release.md. `helm.release` says what a tag has to agree with.
release: $(INSTALLED) $(MONITORING)/helm  ## commit, tag and push a version: make release VERSION=1.2.3 PUSH=origin
	test -z "$$(git status --porcelain)" || { echo "commit or remove what git status shows" >&2; exit 1; }
	$(BIN)/python -m helm.release prepare $(VERSION)
	$(MAKE) docs alerts dashboards
	git commit --all --message "Release $(VERSION)"
	git tag --annotate --message "gpunode $(VERSION)" v$(VERSION)
	$(BIN)/python -m helm.release check v$(VERSION)
	git rm --quiet tests/helm/released/*.tgz
	$(MONITORING)/helm package helm/gpunode --destination tests/helm/released
	git add tests/helm/released
	git commit --message "Keep the chart of $(VERSION), from which tests upgrade"
	$(if $(PUSH),git push --atomic $(PUSH) HEAD v$(VERSION),@echo "What is left: git push --atomic origin HEAD v$(VERSION)")

RELEASED := dist/image
release-image:  ## the image of a tag for this architecture: make release-image TAG=v1.2.3 ENGINE="sudo buildah"
	rm -rf $(RELEASED)/tree && mkdir -p $(RELEASED)
	$(PYTHON) -m helm.release tree $(TAG) $(RELEASED)/tree
	$(MAKE) --directory $(RELEASED)/tree image ENGINE="$(ENGINE)" \
	  REVISION=$$(git rev-parse $(TAG)^{commit}) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct $(TAG))
	rm -rf $(RELEASED)/tree
	architecture=$$($(ENGINE) inspect --type image --format '{{.OCIv1.Architecture}}' localhost/gpunode) && \
	  $(ENGINE) push --quiet --digestfile=$(RELEASED)/$$architecture.digest localhost/gpunode oci-archive:$(RELEASED)/$$architecture.tar && \
	  container=$$($(ENGINE) from localhost/gpunode) && \
	  cat "$$($(ENGINE) mount $$container)/opt/gpunode/sbom.cdx.json" >$(RELEASED)/$$architecture.cdx.json && \
	  $(ENGINE) rm $$container

release-index:  ## one image of those of all architectures in dist/image
	$(ENGINE) manifest create localhost/gpunode-index
	for one in $(RELEASED)/*.tar; do $(ENGINE) manifest add localhost/gpunode-index "oci-archive:$$one"; done
	$(ENGINE) manifest push --quiet --all --digestfile=$(RELEASED)/index.digest localhost/gpunode-index "oci:$(RELEASED)/index"
	$(ENGINE) manifest rm localhost/gpunode-index

RELEASES := $(addprefix $(MONITORING)/, actionlint crane helm kube-apiserver promtool)
release-dry-run: $(INSTALLED) $(RELEASES)  ## all of a release that needs no account: builds twice, checks, pushes to a registry here
	TESTS_NEED_ALL=1 $(BIN)/pytest -n 0 -v -rP tests/packaging/test_release.py tests/packaging/test_release_image.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache .fuzz .hypothesis dist
