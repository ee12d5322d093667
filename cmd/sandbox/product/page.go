package product

import (
	_ "embed"

	"k8s.io/client-go/rest"
)

//go:embed page.yaml
var pageManifest []byte

// PageConfig is how the page reads a sandbox, given the administrator's configuration: as a user who may see what the page shows and nothing else.
func PageConfig(admin *rest.Config) *rest.Config {
	config := rest.CopyConfig(admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: "berth-page"}
	return config
}
