#!/usr/bin/env bash
# Builds programs of a Go module into a folder: FOLDER MODULE VERSION PACKAGE...
# A module of our own requires it, because `go install` refuses modules with replace directives.
set -euo pipefail
folder=$1 module=$2 version=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
cd "$work"
go mod init tools 2>/dev/null
{
    echo "//go:build tools"
    echo "package tools"
    for package; do echo "import _ \"$module${package:+/$package}\""; done
} >tools.go
go get "$module@$version" 2>/dev/null
go mod tidy 2>/dev/null
named="-s -w -X github.com/prometheus/common/version.Version=$version"
for package; do go build -tags remove_all_sd -ldflags "$named" -o "$folder/" "$module${package:+/$package}"; done
