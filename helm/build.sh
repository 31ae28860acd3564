#!/usr/bin/env bash
# Builds a Kubernetes control plane into a folder, and puts the Prometheus Operator's CRDs beside it:
# FOLDER KUBERNETES OPERATOR [PROGRAM...], the second and third as versions of their Go modules.
# Kubernetes replaces its parts by folders of its repository: a module of our own has its list of
# what it requires, and takes the parts as they are published, as v0.X for v1.X.
set -euo pipefail
folder=$1 kubernetes=$2 operator=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
cd "$work"
source_of() { go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",/\1/p'; }

from=$(source_of "k8s.io/kubernetes@$kubernetes")
sed -e 's|^module .*|module cluster|' -e "s|=> \./staging/src/\(.*\)|=> \1 v0.${kubernetes#v1.}|" "$from/go.mod" >go.mod
cat "$from/go.sum" >go.sum
go mod edit -require "k8s.io/kubernetes@$kubernetes"
named="-s -w"
for part in component-base client-go/pkg; do named+=" -X k8s.io/$part/version.gitVersion=$kubernetes"; done
programs=("${@:4}")
[ ${#programs[@]} -gt 0 ] || programs=(kube-apiserver kube-controller-manager kubectl etcd)
packages=("${programs[@]/#/k8s.io/kubernetes/cmd/}")
packages=("${packages[@]/%*\/etcd/go.etcd.io/etcd/server/v3}")
# without the drivers of clouds, which Kubernetes had in its own tree until 1.31
go build -mod=mod -tags providerless -ldflags "$named" -o "$work/" "${packages[@]}"
[ ! -e server ] || mv server etcd
mkdir -p "$folder/crds"
crds=$(source_of "github.com/prometheus-operator/prometheus-operator@$operator")/example/prometheus-operator-crd
for kind in podmonitors servicemonitors prometheusrules prometheuses; do
    install -m 644 "$crds/monitoring.coreos.com_$kind.yaml" "$folder/crds/"
done
mv "${programs[@]}" "$folder/" # last, so that they are there only if all is
