{{/* Fails for changes that no schema refuses: patterns with which Prometheus loads no rules, and names with
which two tiers of an alert would be one. */}}
{{- define "gpunode.refuseChanges" -}}
{{- $called := dict -}}
{{- range $tier := list "page" "ticket" "info" -}}
{{- $name := get ($.Values.rules.severities | default dict) $tier | default $tier -}}
{{- with get $called $name -}}
{{- fail (printf "rules.severities: %s and %s are both %s, so that two tiers of an alert would be one; who is told is for the routes of Alertmanager to say" . $tier $name) -}}
{{- end -}}
{{- $_ := set $called $name $tier -}}
{{- end -}}
{{- range $name, $value := .Values.rules.settings -}}
{{- if and (kindIs "string" $value) (not (hasSuffix "_url" $name)) -}}
{{- /* Without a pattern that can be read, there is no empty match either. */ -}}
{{- if not (regexMatch (printf "^(?s:%s)$|^$" $value) "") -}}
{{- fail (printf "rules.settings.%s: %s is no pattern (RE2)" $name $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The tiers that a site leaves of each alert, as JSON: by alert, and there by the severity that the
tier has by default. Of tiers that get the same severity the first stays. A key without a value is none. */}}
{{- define "gpunode.tiersLeft" -}}
{{- $left := dict -}}
{{- range $alert, $tiers := .alerts -}}
{{- $kept := dict -}}
{{- $taken := dict -}}
{{- $changes := get $.changes $alert -}}
{{- range ternary list $tiers (kindIs "bool" $changes) -}}
{{- $change := get ($changes | default dict) .severity -}}
{{- if not (kindIs "bool" $change) -}}
{{- $tier := include "gpunode.withDefaults" (dict "given" $change "defaults" .) | fromJson -}}
{{- if not (hasKey $taken $tier.severity) -}}{{- $_ := set $kept .severity $tier -}}{{- end -}}
{{- $_ := set $taken $tier.severity true -}}
{{- end -}}
{{- end -}}
{{- $_ := set $left $alert $kept -}}
{{- end -}}
{{- $left | toJson -}}
{{- end -}}

{{/* What is given, and the defaults of the rest, as JSON; `merge` would take a zero for nothing. */}}
{{- define "gpunode.withDefaults" -}}
{{- $all := deepCopy (.given | default dict) -}}
{{- range $key, $default := .defaults -}}
{{- if not (hasKey $all $key) -}}{{- $_ := set $all $key $default -}}{{- end -}}
{{- end -}}
{{- $all | toJson -}}
{{- end -}}

{{/* The text with values in place of their names in braces; `within` says how a value is written. */}}
{{- define "gpunode.withValues" -}}
{{- $text := .text -}}
{{- range $name, $value := .values -}}
{{- $named := printf "${%s}" $name -}}
{{- if contains $named $text -}}{{- $text = $text | replace $named (include $.within $value) -}}{{- end -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* A number or a text as it stands in PromQL. */}}
{{- define "gpunode.inPromql" -}}
{{- include "gpunode.quoted" (include "gpunode.number" .) -}}
{{- end -}}

{{/* The rule groups of one file as JSON, {"groups": […]}, from files/rules.yaml and `.Values.rules`: what
`gpunode rules` makes of the same file, with the site's labels and annotations. */}}
{{- define "gpunode.ruleGroups" -}}
{{- $rules := .root.Values.rules -}}
{{- $settings := include "gpunode.withDefaults" (dict "given" $rules.settings "defaults" .document.settings) | fromJson -}}
{{- $_ := set $settings "runbooks_url" (trimSuffix "/" $rules.runbooks) -}}
{{- $left := include "gpunode.tiersLeft" (dict "alerts" .document.alerts "changes" ($rules.alerts | default dict)) | fromJson -}}
{{- $groups := list -}}
{{- range $group := .groups -}}
{{- $kept := list -}}
{{- range $rule := $group.rules -}}
{{- $tier := dig ($rule.alert | default "") ($rule.tier | default "") dict $left -}}
{{- if $rule.alert -}}
{{- if $tier -}}
{{- $one := pick $rule "alert" "keep_firing_for" -}}
{{- if not $rules.keepFiringFor -}}{{- $one = omit $one "keep_firing_for" -}}{{- end -}}
{{- $values := merge (dict "threshold" $tier.threshold) $settings -}}
{{- $_ := set $one "expr" (include "gpunode.withValues" (dict "text" $rule.expr "values" $values "within" "gpunode.inPromql")) -}}
{{- if ne $tier.for "0s" -}}{{- $_ := set $one "for" $tier.for -}}{{- end -}}
{{- $severity := get ($rules.severities | default dict) $tier.severity | default $tier.severity -}}
{{- $_ := set $one "labels" (merge (dict) ($rules.alertLabels | default dict) (dict "severity" $severity) $rule.labels) -}}
{{- $annotations := dict -}}
{{- range $name, $text := $rule.annotations -}}
{{- $_ := set $annotations $name (include "gpunode.withValues" (dict "text" $text "values" $settings "within" "gpunode.number")) -}}
{{- end -}}
{{- $_ := set $one "annotations" (merge (dict) ($rules.alertAnnotations | default dict) $annotations) -}}
{{- $kept = append $kept $one -}}
{{- end -}}
{{- else if or (not $rule.asked_by) (get $left ($rule.asked_by | default "")) -}}
{{- $expr := include "gpunode.withValues" (dict "text" $rule.expr "values" $settings "within" "gpunode.inPromql") -}}
{{- $kept = append $kept (dict "record" $rule.record "expr" $expr) -}}
{{- end -}}
{{- end -}}
{{- if $kept -}}
{{- $groups = append $groups (dict "name" $group.name "interval" $group.interval "rules" $kept) -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toJson -}}
{{- end -}}
