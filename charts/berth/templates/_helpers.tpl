{{/* Helpers of several templates. Objects that no value changes are in files/, as copies from manifests/. */}}

{{/* The image of a component. Component united runs that of controller. Argument: dict "root" $ "component" its name. */}}
{{- define "berth.image" -}}
{{- $of := ternary "controller" .component (eq .component "united") -}}
{{- with (index .root.Values $of).image -}}
{{ . }}
{{- else -}}
{{ .root.Values.image.registry }}/berth-{{ $of }}{{ with .root.Values.image.tag | default .root.Chart.AppVersion }}:{{ . }}{{ end }}
{{- end -}}
{{- end }}

{{- define "berth.labels" -}}
{app.kubernetes.io/name: berth, app.kubernetes.io/component: {{ . }}}
{{- end }}

{{/* The first part of the metadata and the spec of each pod. Argument as above. */}}
{{- define "berth.podMetadata" -}}
{{- if eq .component "controller" }}
labels: {app.kubernetes.io/name: berth, app.kubernetes.io/component: controller, berth.dev/converts: v1beta1}
{{- else }}
labels: {{ include "berth.labels" .component }}
{{- end }}
{{- with (index .root.Values .component).podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "berth.podSpec" -}}
{{- $values := index .root.Values .component -}}
serviceAccountName: berth-{{ .component }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Each constraint applies to the component's own pods, unless it has a labelSelector. Argument as above. */}}
{{- define "berth.topologySpreadConstraints" -}}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "berth.labels" .component | fromYaml)) -}}
{{- with (index .root.Values .component).topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
- {{ if hasKey . "labelSelector" }}{{ toYaml . | nindent 2 | trim }}{{ else }}{{ merge (dict) . $own | toYaml | nindent 2 | trim }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The common fields of each container. Argument as above. */}}
{{- define "berth.container" -}}
name: {{ .component }}
image: {{ include "berth.image" . }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with (index .root.Values .component).resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- if (.limits).memory }}
env:
- {name: GOMEMLIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
{{- end }}
{{- end }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{/* The PodDisruptionBudget of a component, if it is enabled. Argument as above. */}}
{{- define "berth.podDisruptionBudget" -}}
{{- with (index .root.Values .component).podDisruptionBudget }}
{{- if .enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: berth-{{ $.component }}
  namespace: berth-system
spec:
  maxUnavailable: {{ .maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{ include "berth.labels" $.component }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" if something creates workloads or spreads. */}}
{{- define "berth.united" -}}
{{- if or .Values.unitedDeployments.enabled .Values.federation.enabled .Values.spreadRules.enabled }}true{{ end -}}
{{- end }}

{{/* "true" if the controller serves webhooks. */}}
{{- define "berth.webhooks" -}}
{{- if or .Values.admission.enabled .Values.budgets.enabled }}true{{ end -}}
{{- end }}

{{/* A file with a webhook configuration or a policy, with another list of excluded namespaces. Berth's own namespace is always excluded.
     Argument: dict "root" $ "file" path "shipped" the excluded namespaces of the file "excluded" the new list. */}}
{{- define "berth.excluding" -}}
{{- $excluded := append (without .excluded "berth-system") "berth-system" -}}
{{- $text := .root.Files.Get .file | replace (printf "[%s, berth-system]" (join ", " .shipped)) (printf "[%s]" (join ", " $excluded)) -}}
{{- if eq .root.Values.certificates.source "cert-manager" }}
{{- range list "webhook" "budget" "sidecars" }}
{{- $text = replace (printf "WebhookConfiguration\nmetadata:\n  name: berth-%s\n" .) (printf "WebhookConfiguration\nmetadata:\n  name: berth-%s\n  annotations: {cert-manager.io/inject-ca-from: berth-system/berth-webhook}\n" .) $text }}
{{- end }}
{{- end }}
{{- $text }}
{{- end }}
