package members

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/cluster-inventory-api/pkg/access"
)

const (
	// SecretAnnotation on a ClusterProfile names a Secret in the same namespace, whose key KubeconfigKey is a kubeconfig for the member. It takes precedence
	// over the access providers of the profile.
	SecretAnnotation = "federation.berth.dev/kubeconfig-secret"
	// KubeconfigKey is the key of the kubeconfig in such a Secret.
	KubeconfigKey = "kubeconfig"
)

// fingerprint is the same for the same credentials.
type fingerprint [sha256.Size]byte

// fromSecret returns how to connect with the kubeconfig, which says everything by itself. Whoever writes the Secret must not thereby run commands in the
// hub or read its files. So only fields that hold data are accepted; any other field, known or not, is refused.
func fromSecret(secret string, kubeconfig []byte) (*rest.Config, error) {
	where := fmt.Sprintf("key %s of Secret %s", KubeconfigKey, secret)
	if len(kubeconfig) == 0 {
		return nil, badCredentials("%s is missing or empty: put a kubeconfig there", where)
	}
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, badCredentials("%s is no kubeconfig: correct it: %w", where, err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return nil, badCredentials("%s has no context %q: set current-context to one that is there", where, config.CurrentContext)
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, badCredentials("%s has no cluster %q or no user %q: add what current-context names", where, current.Cluster, current.AuthInfo)
	}
	if refused := notData(cluster, user); refused != "" {
		return nil, badCredentials("%s sets %s: embed the data instead; commands and files of the hub are not for members to use", where, refused)
	}
	server, err := url.Parse(cluster.Server)
	if err != nil || server.Host == "" || server.Scheme != "https" && server.Scheme != "http" {
		return nil, badCredentials("%s has the server %q: write its URL, such as https://member.example.com:6443", where, cluster.Server)
	}
	result, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, badCredentials("%s cannot be used: correct it: %w", where, err)
	}
	if _, err := rest.TLSConfigFor(result); err != nil {
		return nil, badCredentials("%s has certificates or keys that do not parse: correct them: %w", where, err)
	}
	return result, nil
}

// expiryOf is when credentials end: a token of a service account, or a client certificate. Zero if they do not say.
func expiryOf(config *rest.Config) time.Time {
	if config == nil {
		return time.Time{}
	}
	if parts := strings.Split(config.BearerToken, "."); len(parts) == 3 {
		var content struct {
			Expires int64 `json:"exp"`
		}
		if text, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && json.Unmarshal(text, &content) == nil && content.Expires > 0 {
			return time.Unix(content.Expires, 0)
		}
	}
	if certificates, err := cert.ParseCertsPEM(config.CertData); err == nil {
		return certificates[0].NotAfter
	}
	return time.Time{}
}

// dataFields are the fields of a cluster and a user that hold data. One that a later client-go adds is none of them, until somebody has said that it is.
var dataFields = sets.New("LocationOfOrigin", "Server", "TLSServerName", "InsecureSkipTLSVerify", "CertificateAuthorityData", "ProxyURL", "DisableCompression", "Extensions",
	"ClientCertificateData", "ClientKeyData", "Token", "Impersonate", "ImpersonateUID", "ImpersonateGroups", "ImpersonateUserExtra", "Username", "Password")

// notData names the fields that are set and are no data, as in a kubeconfig, or returns "".
func notData(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
	var refused []string
	for _, part := range []reflect.Value{reflect.ValueOf(*cluster), reflect.ValueOf(*user)} {
		for i := range part.NumField() {
			field := part.Type().Field(i)
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); !dataFields.Has(field.Name) && !part.Field(i).IsZero() {
				refused = append(refused, cmp.Or(name, field.Name))
			}
		}
	}
	return strings.Join(refused, " and ")
}

// fromProviders returns how to connect by an access provider of the profile, with a command that the hub's operator has configured. The profile chooses
// among the commands and says where the member is; it cannot name a command.
func fromProviders(providers *access.Config, profile *inventory.ClusterProfile) (*rest.Config, error) {
	if providers == nil || len(providers.Providers) == 0 {
		return nil, badCredentials("annotate the ClusterProfile with %s=NAME, where Secret NAME has a kubeconfig, or start the hub with --clusterprofile-provider-file", SecretAnnotation)
	}
	own := slices.Clone(providers.Providers)
	for i := range own { // BuildConfigFromCP appends to the arguments of the configuration that it is given
		own[i].ExecConfig = own[i].ExecConfig.DeepCopy()
	}
	config, err := access.New(own).BuildConfigFromCP(profile)
	if err != nil {
		return nil, badCredentials("status.accessProviders of the ClusterProfile and --clusterprofile-provider-file do not fit each other: %w", err)
	}
	return config, nil
}

// fingerprintOf takes what a connection depends on.
func fingerprintOf(parts ...any) fingerprint {
	content, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings, bytes, and types of the API
	}
	return sha256.Sum256(content)
}
