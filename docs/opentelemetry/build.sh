#!/usr/bin/env bash
# Builds the OpenTelemetry Collector of builder.yaml into a folder: FOLDER VERSION STABLE, the latter two
# as v0.160.0 and v1.66.0, which go together.
set -euo pipefail
folder=$1 version=$2 stable=$3
manifest=$(dirname "$(realpath "$0")")/builder.yaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
cd "$work"
sed -e "s/VERSION$/$version/" -e "s/STABLE$/$stable/" "$manifest" >builder.yaml
GOBIN=$work go install "go.opentelemetry.io/collector/cmd/builder@$version"
./builder --config builder.yaml
mv build/otelcol "$folder/" # last, so that it is there only if all is
