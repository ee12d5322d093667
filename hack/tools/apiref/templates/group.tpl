{{- define "gvDetails" -}}
{{- $gv := . -}}
# {{ range $gv.SortedKinds }}{{ . }}{{ end }} ({{ $gv.GroupVersionString }})

Generated from the types by `make generate`. Fields marked "Berth" are not a part of the kind as OpenKruise serves it.
{{ range $gv.SortedKinds }}{{ template "type" ($gv.TypeForKind .) }}{{ end }}{{ range $gv.SortedTypes }}{{ if not .GVK }}{{ template "type" . }}{{ end }}{{ end }}
{{- end -}}
