{{/* The rule groups of one file, with the changes of `.Values.rules`, as JSON: {"groups": […]}.

files/rules.yaml has every rule with its defaults. A change is applied as `python -m alerts.generate
--changes` applies it: of two tiers that end up with one severity, the first stays. */}}
{{- define "gpunode.ruleGroups" -}}
{{- /* What a values file names without a value, Helm takes away. */ -}}
{{- $rules := deepCopy .root.Values.rules -}}
{{- range list "alerts" "settings" "severities" "alertLabels" "alertAnnotations" -}}
{{- $_ := set $rules . (get $rules . | default dict) -}}
{{- end -}}
{{- $defaults := .file.settings -}}
{{- $groups := list -}}
{{- $seen := dict -}}
{{- range $group := .groups -}}
{{- $kept := list -}}
{{- range $rule := $group.rules -}}
{{- $changes := dig ($rule.of | default "") (dict) $rules.alerts -}}
{{- $tier := $rule.tier | default "" -}}
{{- $change := dict -}}
{{- $wanted := true -}}
{{- if kindIs "bool" $changes -}}
{{- $wanted = false -}}
{{- else if $tier -}}
{{- $change = dig $tier (dict) $changes -}}
{{- if kindIs "bool" $change -}}
{{- $wanted = false -}}
{{- end -}}
{{- else if $rule.tiers -}}
{{- /* a recording rule of an alert goes with the last tier of it */ -}}
{{- $wanted = false -}}
{{- range $rule.tiers -}}{{- if not (kindIs "bool" (dig . (dict) $changes)) -}}{{- $wanted = true -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if and $wanted $tier -}}
{{- $severity := $change.severity | default $tier -}}
{{- $key := printf "%s/%s" $rule.of $severity -}}
{{- if hasKey $seen $key -}}{{- $wanted = false -}}{{- end -}}
{{- $_ := set $seen $key true -}}
{{- end -}}
{{- if $wanted -}}
{{- $expr := $rule.expr -}}
{{- if $tier -}}
{{- $threshold := $rule.threshold -}}
{{- if hasKey $change "threshold" -}}{{- $threshold = include "gpunode.number" $change.threshold -}}{{- end -}}
{{- $expr = $expr | replace "${threshold}" $threshold -}}
{{- end -}}
{{- $dashboard := dig "annotations" "dashboard" "" $rule -}}
{{- range $name, $default := $defaults -}}
{{- $value := $default -}}
{{- if hasKey $rules.settings $name -}}{{- $value = include "gpunode.number" (get $rules.settings $name) -}}{{- end -}}
{{- $expr = $expr | replace (printf "${%s}" $name) (include "gpunode.quoted" $value) -}}
{{- $dashboard = $dashboard | replace (printf "${%s}" $name) $value -}}
{{- end -}}
{{- $one := dict "expr" $expr -}}
{{- if $tier -}}
{{- $_ := set $one "alert" $rule.of -}}
{{- with $change.for | default $rule.for -}}{{- if ne . "0s" -}}{{- $_ := set $one "for" . -}}{{- end -}}{{- end -}}
{{- if $rules.keepFiringFor -}}{{- with $rule.keep_firing_for -}}{{- $_ := set $one "keep_firing_for" . -}}{{- end -}}{{- end -}}
{{- $severity := $change.severity | default $tier -}}
{{- $labels := merge (dict "severity" (dig $severity $severity $rules.severities)) $rule.labels -}}
{{- $_ := set $one "labels" (merge (deepCopy $rules.alertLabels) $labels) -}}
{{- $annotations := merge (dict "dashboard" $dashboard) $rule.annotations -}}
{{- range $name := list "runbook_url" "runbook_url_ko" -}}
{{- with get $annotations $name -}}{{- $_ := set $annotations $name (printf "%s/%s" (trimSuffix "/" $rules.runbooks) .) -}}{{- end -}}
{{- end -}}
{{- $_ := set $one "annotations" (merge (deepCopy $rules.alertAnnotations) $annotations) -}}
{{- else -}}
{{- $_ := set $one "record" $rule.record -}}
{{- end -}}
{{- $kept = append $kept $one -}}
{{- end -}}
{{- end -}}
{{- if $kept -}}
{{- $groups = append $groups (dict "name" $group.name "interval" $group.interval "rules" $kept) -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toJson -}}
{{- end -}}
