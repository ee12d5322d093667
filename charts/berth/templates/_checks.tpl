{{/* What must be true of the cluster. `kubectl berth doctor --before-install` asks the same, but for cert-manager, before Helm creates the definitions. Without a cluster (helm
     template), lookup finds nothing, and nothing is asked. */}}
{{- define "berth.checks" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- if eq .Values.certificates.source "cert-manager" }}
{{- range list "certificates.cert-manager.io" "issuers.cert-manager.io" }}
{{- if not (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .) }}
{{- fail (printf "certificates.source is cert-manager, and the cluster has no definition %s: install cert-manager first, or leave out certificates.source" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Release.IsInstall }}
{{- with lookup "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "" "kruise-validating-webhook-configuration" }}
{{- range .webhooks }}
{{- $resources := list }}
{{- range .rules }}
{{- $resources = concat $resources (.resources | default list) }}
{{- end }}
{{- if and $.Values.unitedDeployments.enabled (has "uniteddeployments" $resources) }}
{{- fail (printf "OpenKruise serves UnitedDeployments in this cluster (ValidatingWebhookConfiguration kruise-validating-webhook-configuration, webhook %s), and two controllers would create children without end: install with unitedDeployments.enabled=false, or see docs/install.md" .name) }}
{{- end }}
{{- if and $resources (ne $.Values.migrateFrom "kruise") (not (without $resources "workloadspreads" "podunavailablebudgets")) }}
{{- fail (printf "OpenKruise serves WorkloadSpreads and PodUnavailableBudgets in this cluster (ValidatingWebhookConfiguration kruise-validating-webhook-configuration, webhook %s): begin with `kubectl berth migrate --from kruise`, and install with migrateFrom=kruise when it asks for Berth" .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
