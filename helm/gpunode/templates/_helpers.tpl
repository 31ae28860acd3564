{{- define "gpunode.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* No dots, which the name of a release may have and that of a Service may not. */}}
{{- define "gpunode.fullname" -}}
{{- $name := include "gpunode.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | replace "." "-" | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of the port that is scraped. Values that --reuse-values keeps may be older than the key. */}}
{{- define "gpunode.port" -}}
{{- $port := .Values.monitor.port | default "metrics" -}}
{{- $named := list "metrics" -}}
{{- range concat (.Values.extraContainers | default list) (.Values.initContainers | default list) -}}
{{- range .ports -}}{{- $named = append $named .name -}}{{- end -}}
{{- end -}}
{{- if not (has $port $named) -}}
{{- fail (printf "monitor.port %s: no container has a port of this name, so that nothing would be scraped; choose from %s, or give it to a container of extraContainers" $port (join ", " $named)) -}}
{{- end -}}
{{- $port -}}
{{- end -}}

{{- define "gpunode.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{/* The annotations of an object; those of its own win over those for all objects. */}}
{{- define "gpunode.annotations" -}}
{{- with merge (deepCopy (.more | default dict)) (.root.Values.commonAnnotations | default dict) -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Non-empty where the pod has more of the node than Pod Security `restricted` allows: so do platforms,
drivers, networks and volumes, whatever the profile. */}}
{{- define "gpunode.beyondRestricted" -}}
{{- $pod := (include (print .Template.BasePath "/daemonset.yaml") . | fromYaml).spec.template.spec -}}
{{- regexFind `(?m)^ *(- )?((hostPath|hostPort|hostNetwork|hostPID):|privileged: true)` (toYaml $pod) -}}
{{- end -}}

{{/* What never changes between two versions: a DaemonSet's selector may not. */}}
{{- define "gpunode.selector" -}}
app.kubernetes.io/name: {{ include "gpunode.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* What selects the pod of `helm test`, and neither the DaemonSet nor the Service does. */}}
{{- define "gpunode.testSelector" -}}
app.kubernetes.io/name: {{ printf "%s-test" (include "gpunode.name" . | trunc 58) | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "gpunode.testLabels" -}}
{{- merge (include "gpunode.testSelector" . | fromYaml) (include "gpunode.labels" . | fromYaml) | toYaml -}}
{{- end -}}

{{- define "gpunode.labels" -}}
{{- include "gpunode.labelsWith" (dict "root" . "more" dict) -}}
{{- end -}}

{{/* The labels of an object that has some of its own: they win over those for all objects, but not
over the selector's. */}}
{{- define "gpunode.labelsWith" -}}
{{- $labels := include "gpunode.selector" .root | fromYaml -}}
{{- $own := dict
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_")
-}}
{{- merge $labels (.more | default dict) (.root.Values.commonLabels | default dict) $own | toYaml -}}
{{- end -}}

{{- define "gpunode.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (.Values.imagePullSecrets | default list) (dig "imagePullSecrets" list (.Values.global | default dict) | default list) -}}
{{- /* Charts that share global values have some that take names alone. */ -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with $secrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Nodes with one of the labels by which GPU operators and clouds mark GPU nodes. */}}
{{- define "gpunode.gpuNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions: [{key: nvidia.com/gpu.present, operator: In, values: ["true"]}]
      - matchExpressions: [{key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}]
      - matchExpressions: [{key: feature.node.kubernetes.io/pci-0302_10de.present, operator: In, values: ["true"]}]
      - matchExpressions: [{key: feature.node.kubernetes.io/pci-0300_10de.present, operator: In, values: ["true"]}]
      - matchExpressions: [{key: cloud.google.com/gke-accelerator, operator: Exists}]
      - matchExpressions: [{key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia]}]
      - matchExpressions: [{key: eks.amazonaws.com/instance-gpu-manufacturer, operator: In, values: [nvidia]}]
      - matchExpressions: [{key: kubernetes.azure.com/accelerator, operator: In, values: [nvidia]}]
{{- end -}}

{{- define "gpunode.image" -}}
{{- $repository := .Values.image.repository -}}
{{- with dig "imageRegistry" "" (.Values.global | default dict) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^[^/]+[.:][^/]*/" $repository "") -}}
{{- end -}}
{{- /* The values of a release have the digest of its image, which is not that of a tag that a site names. */ -}}
{{- $released := index .Chart.Annotations "artifacthub.io/images" | default "" -}}
{{- if and .Values.image.digest (not (and .Values.image.tag (contains .Values.image.digest $released))) -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "gpunode.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "gpunode.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* Non-empty where an object is wanted: by "true", or by "auto" if its CRD is there or it needs none. */}}
{{- define "gpunode.wanted" -}}
{{- $enabled := toString .enabled -}}
{{- $there := or (eq .kind "ConfigMap") (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind)) -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") $there) -}}
yes
{{- end -}}
{{- end -}}

{{/* Fails for values that other charts have and this one does not, with the reason for each. */}}
{{- define "gpunode.refuse" -}}
{{- $refused := list -}}
{{- /* What a release before had by default comes with `helm upgrade --reuse-values`. */ -}}
{{- $former := dict "rules.part" "all" "rules.keepFiringFor" "true" -}}
{{- range $name, $why := .Files.Get "files/refused.yaml" | fromYaml -}}
{{- $at := $.Values -}}
{{- range splitList "." $name -}}
{{- $at = ternary $at dict (kindIs "map" $at) -}}
{{- $at = get $at . -}}
{{- end -}}
{{- $given := and $at (not (kindIs "invalid" $at)) -}}
{{- if hasKey $former $name -}}
{{- $given = not (has (toString $at) (list "" "<nil>" (get $former $name))) -}}
{{- end -}}
{{- if $given -}}
{{- $refused = append $refused (printf "%s is not a value of this chart: %s" $name $why) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "DCGM_EXPORTER_" (toString .name) -}}
{{- $refused = append $refused (printf "extraEnv %s: this is no dcgm-exporter; docs/kubernetes.md has what replaces its settings" .name) -}}
{{- end -}}
{{- end -}}
{{- with $refused -}}{{- fail (join "\n" .) -}}{{- end -}}
{{- end -}}

{{/* What the platform needs, in YAML; nothing for none. */}}
{{- define "gpunode.platform" -}}
{{- with .Values.platform -}}
{{- $all := $.Files.Get "files/platforms.yaml" | fromYaml -}}
{{- $needs := get $all . -}}
{{- with $needs.cannot -}}{{- fail (printf "platform %s: %s (%s)" $.Values.platform . $needs.source) -}}{{- end -}}
{{- $needs | toYaml -}}
{{- end -}}
{{- end -}}

{{/* Values that an upgrade with --reuse-values keeps may be older than the key. */}}
{{- define "gpunode.kubeletPath" -}}
{{- .Values.kubeletPath | default "/var/lib/kubelet/pod-resources" -}}
{{- end -}}

{{/* What each profile adds to the one before: what the daemon sees of the node, and the helpers that have
the privilege that it has not. */}}
{{- define "gpunode.profile" -}}
{{- $level := dict "restricted" 0 "node" 1 "pods" 2 "jobs" 3 "network" 4 | dig .Values.profile 0 -}}
{{- if and .Values.hostRoot (eq $level 0) -}}{{- fail "hostRoot needs a profile other than restricted" -}}{{- end -}}
{{- $hostPaths := list -}}
{{- if ge $level 1 -}}{{- $hostPaths = ternary (list "/") (list "/proc" "/sys") .Values.hostRoot -}}{{- end -}}
{{- $helpers := list -}}
{{- if ge $level 2 -}}
{{- $helpers = append $helpers (dict
  "name" "sockets"
  "capabilities" list
  "hostPaths" (list (include "gpunode.kubeletPath" .))
) -}}
{{- end -}}
{{- if ge $level 3 -}}
{{- $helpers = append $helpers (dict
  "name" "files"
  "capabilities" (list "DAC_READ_SEARCH" "SETGID" "SETUID" "SYS_PTRACE")
  "hostPaths" (ternary $hostPaths (concat $hostPaths (list "/var/log/pods" "/var/log/containers")) .Values.hostRoot)
) -}}
{{- end -}}
{{- if and (ge $level 3) (dig "enabled" true (.Values.stacks | default dict)) -}}
{{- $helpers = append $helpers (dict
  "name" "stacks"
  "capabilities" (list "DAC_READ_SEARCH" "SYS_PTRACE")
  "hostPaths" (list "/proc")
) -}}
{{- end -}}
{{- if ge $level 4 -}}
{{- $helpers = append $helpers (dict
  "name" "network"
  "capabilities" (list "SYS_ADMIN" "SYS_PTRACE")
  "hostPaths" (list "/proc")
) -}}
{{- end -}}
{{- $volumes := dict -}}
{{- range $helper := append $helpers (dict "hostPaths" $hostPaths) -}}
{{- range $path := $helper.hostPaths -}}
{{- if not (hasKey $volumes $path) -}}{{- $_ := set $volumes $path (printf "host-%d" (len $volumes)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- dict
  "hostPaths" $hostPaths
  "volumes" $volumes
  "helpers" $helpers
  "hostPID" (ge $level 3)
  "hostNetwork" (ge $level 4)
  "clientSocket" (and (ge $level 3) .Values.clientSocket.enabled)
| toJson -}}
{{- end -}}

{{/* The mounts of folders of the node. What is mounted below them is read-only, too, where Kubernetes has
this; it excludes that later mounts appear, which only the root is for, unless hostRootPropagation is None:
https://kubernetes.io/docs/concepts/storage/volumes/#recursive-read-only-mounts */}}
{{- define "gpunode.hostMounts" -}}
{{- $recursive := semverCompare ">=1.31.0-0" .root.Capabilities.KubeVersion.Version -}}
{{- range .paths }}
- name: {{ get $.volumes . }}
  mountPath: /host{{ trimSuffix "/" . }}
  readOnly: true
  {{- if and (eq . "/") (ne $.root.Values.hostRootPropagation "None") }}
  mountPropagation: HostToContainer
  {{- else if $recursive }}
  recursiveReadOnly: IfPossible
  {{- end }}
{{- end }}
{{- end -}}

{{/* The user of the daemon, whom alone helpers answer. */}}
{{- define "gpunode.user" -}}
{{- $pod := (include "gpunode.podSecurityContext" . | fromYaml).runAsUser -}}
{{- $own := .Values.securityContext | default dict -}}
{{- hasKey $own "runAsUser" | ternary $own.runAsUser $pod | int64 -}}
{{- end -}}

{{- define "gpunode.podSecurityContext" -}}
{{- $context := dict "runAsUser" 65534 "runAsGroup" 65534 "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- mergeOverwrite $context (deepCopy (.Values.podSecurityContext | default dict)) | toYaml -}}
{{- end -}}

{{- define "gpunode.securityContext" -}}
{{- $context := dict -}}
{{- if .Values.driver.library -}}{{- $_ := set $context "privileged" true -}}{{- end -}}
{{- include "gpunode.confined" (dict "capabilities" list "context" $context "given" .Values.securityContext) -}}
{{- end -}}

{{/* Kubernetes gives capabilities to root alone. CHOWN is given up once the socket belongs to the daemon's user. */}}
{{- define "gpunode.helperSecurityContext" -}}
{{- $context := dict "runAsUser" 0 "runAsGroup" 0 "runAsNonRoot" false -}}
{{- include "gpunode.confined" (dict "capabilities" (prepend .helper.capabilities "CHOWN") "context" $context "given" (.root.Values.helpers | default dict).securityContext) -}}
{{- end -}}

{{/* A security context without any right but capabilities, and what a site adds to it. */}}
{{- define "gpunode.confined" -}}
{{- $given := deepCopy (.given | default dict) -}}
{{- $capabilities := dict "drop" (list "ALL") -}}
{{- with concat .capabilities (dig "capabilities" "add" list $given) | uniq -}}
{{- $_ := set $capabilities "add" . -}}
{{- if hasKey $given "capabilities" -}}{{- $_ := set $given.capabilities "add" . -}}{{- end -}}
{{- end -}}
{{- $context := merge (dict "readOnlyRootFilesystem" true "capabilities" $capabilities) .context -}}
{{- if not (or $context.privileged $given.privileged) -}}
{{- $_ := set $context "allowPrivilegeEscalation" false -}}
{{- end -}}
{{- mergeOverwrite $context $given | toYaml -}}
{{- end -}}

{{/* Relabelings that every scrape needs: the rules ask for them. The action is the one that the operator
would add, after which Argo CD would see a difference for ever. */}}
{{- define "gpunode.relabelings" -}}
{{- if not .Values.monitor.jobLabel -}}
- action: replace
  targetLabel: job
  replacement: gpunode
{{ end -}}
- action: replace
  sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: instance
{{- with .Values.cluster }}
- action: replace
  targetLabel: cluster
  replacement: {{ . | replace "$" "$$" | quote }}
{{- end }}
{{- with .Values.monitor.relabelings }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A dashboard with the links to pages that a site names. */}}
{{- define "gpunode.dashboard" -}}
{{- $values := .root.Values -}}
{{- /* Without its spaces it fits into the annotation in which kubectl apply keeps an object. */ -}}
{{- $text := .root.Files.Get .path | fromJson | toRawJson -}}
{{- $link := dict -}}
{{- if has .name (list "gpunode-node" "gpunode-host" "gpunode-gpu") -}}
{{- $link = dict "title" "Page of the node" "url" $values.dashboards.nodePage -}}
{{- else if has .name (list "gpunode-fleet" "gpunode-capacity") -}}
{{- $link = dict "title" "Capacity report" "url" $values.dashboards.report -}}
{{- end -}}
{{- if $link.url -}}
{{- $board := fromJson $text -}}
{{- $more := dict "type" "link" "icon" "external link" "tooltip" "" "tags" list "asDropdown" false "targetBlank" true "includeVars" false "keepTime" false -}}
{{- $text = set $board "links" (append $board.links (merge $link $more)) | toRawJson -}}
{{- end -}}
{{- $text -}}
{{- end -}}
