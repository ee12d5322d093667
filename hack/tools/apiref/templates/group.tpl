{{- define "gvDetails" -}}
{{- $gv := . -}}
# {{ range $gv.SortedKinds }}{{ . }}{{ end }} ({{ $gv.GroupVersionString }})

Generated from the types by `make generate`. Fields marked "Berth" are not a part of the kind as OpenKruise serves it. The API server serves `v1alpha1` too; [versioning](../versioning.md#what-differs-between-the-versions)
says what differs.
{{ range $gv.SortedKinds }}{{ template "type" ($gv.TypeForKind .) }}{{ end }}{{ range $gv.SortedTypes }}{{ if not .GVK }}{{ template "type" . }}{{ end }}{{ end }}
{{- end -}}
