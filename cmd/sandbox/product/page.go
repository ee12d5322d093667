package product

import (
	_ "embed"

	"k8s.io/client-go/rest"
)

//go:embed page.yaml
var pageManifest []byte

// PageConfig is the configuration of the page's client, made from the administrator's: a user who may read what the
// page shows and nothing else.
func PageConfig(admin *rest.Config) *rest.Config {
	config := rest.CopyConfig(admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: "berth-page"}
	return config
}
