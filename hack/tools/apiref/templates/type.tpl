{{- define "type" -}}
{{- $type := . -}}
{{- if or (markdownShouldRenderType $type) (index $type.Markers "apiref:render") }}
## {{ $type.Name }}

{{ $type.Doc | trim }}
{{ if $type.References }}
In: {{ range $i, $ref := $type.SortedReferences }}{{ if $i }}, {{ end }}{{ if or (markdownShouldRenderType $ref) (index $ref.Markers "apiref:render") }}{{ markdownRenderTypeLink $ref }}{{ else }}{{ $ref.Name }}{{ end }}{{ end }}.
{{ end }}
{{- if $type.Members }}
| field | type | |
|---|---|---|
{{ range $type.Members -}}
{{ if ne .Name "metadata" -}}
| `{{ .Name }}` | {{ regexReplaceAll "\\[(IntOrString|RawExtension|UID)\\]\\([^)]*\\)" (markdownRenderType .Type) "$1" }} | {{ template "type_members" . }} |
{{ end -}}
{{ end -}}
{{ end -}}
{{- if $type.EnumValues }}
| value | |
|---|---|
{{ range $type.EnumValues -}}
| `{{ .Name }}` | {{ markdownRenderFieldDoc .Doc | replace "<br />" " " | trim }} |
{{ end -}}
{{ end -}}
{{- end -}}
{{- end -}}
