{{- define "type_members" -}}
{{ markdownRenderFieldDoc .Doc | replace "<br />" " " | trim }}{{ if .Default }} Default: `{{ .Default }}`.{{ end }}
{{- end -}}
