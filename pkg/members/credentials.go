package members

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
	result := &rest.Config{
		Host:               cluster.Server,
		BearerToken:        user.Token,
		Username:           user.Username,
		Password:           user.Password,
		DisableCompression: cluster.DisableCompression,
		Impersonate: rest.ImpersonationConfig{
			UserName: user.Impersonate, UID: user.ImpersonateUID, Groups: user.ImpersonateGroups, Extra: user.ImpersonateUserExtra,
		},
		TLSClientConfig: rest.TLSClientConfig{
			Insecure: cluster.InsecureSkipTLSVerify, ServerName: cluster.TLSServerName,
			CAData: cluster.CertificateAuthorityData, CertData: user.ClientCertificateData, KeyData: user.ClientKeyData,
		},
	}
	if (len(user.ClientCertificateData) > 0) != (len(user.ClientKeyData) > 0) {
		return nil, badCredentials("%s has one of client-certificate-data and client-key-data: add the other", where)
	}
	if cluster.ProxyURL != "" {
		proxy, err := url.Parse(cluster.ProxyURL)
		if err != nil {
			return nil, badCredentials("%s has a proxy-url that is no URL: correct it", where)
		}
		result.Proxy = http.ProxyURL(proxy)
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
	if block, _ := pem.Decode(config.CertData); block != nil {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			return certificate.NotAfter
		}
	}
	return time.Time{}
}

// notData names the fields that are set and are no data, or returns "".
func notData(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
	var refused []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"exec", user.Exec != nil}, {"auth-provider", user.AuthProvider != nil}, {"tokenFile", user.TokenFile != ""},
		{"client-certificate", user.ClientCertificate != ""}, {"client-key", user.ClientKey != ""},
		{"certificate-authority", cluster.CertificateAuthority != ""},
	} {
		if field.set {
			refused = append(refused, field.name)
		}
	}
	if refused != nil {
		return strings.Join(refused, " and ")
	}
	rest, none := *cluster, map[string]runtime.Object{}
	rest.LocationOfOrigin, rest.Server, rest.TLSServerName, rest.InsecureSkipTLSVerify = "", "", "", false
	rest.CertificateAuthorityData, rest.ProxyURL, rest.DisableCompression, rest.Extensions = nil, "", false, none
	restOfUser := *user
	restOfUser.LocationOfOrigin, restOfUser.ClientCertificateData, restOfUser.ClientKeyData, restOfUser.Token = "", nil, nil, ""
	restOfUser.Impersonate, restOfUser.ImpersonateUID, restOfUser.ImpersonateGroups, restOfUser.ImpersonateUserExtra = "", "", nil, nil
	restOfUser.Username, restOfUser.Password, restOfUser.Extensions = "", "", none
	if !reflect.DeepEqual(rest, clientcmdapi.Cluster{Extensions: none}) || !reflect.DeepEqual(restOfUser, clientcmdapi.AuthInfo{Extensions: none}) {
		return "a field that this version does not know"
	}
	return ""
}

// fromProviders returns how to connect by an access provider of the profile, with a command that the hub's operator has configured. The profile chooses
// among the commands and says where the member is; it cannot name a command.
func fromProviders(providers *access.Config, profile *inventory.ClusterProfile) (*rest.Config, error) {
	if providers == nil || len(providers.Providers) == 0 {
		return nil, badCredentials("annotate the ClusterProfile with %s=NAME, where Secret NAME has a kubeconfig, or start the hub with --clusterprofile-provider-file", SecretAnnotation)
	}
	own, err := copyOf(providers) // BuildConfigFromCP appends to the arguments of the configuration that it is given
	if err != nil {
		return nil, badCredentials("the file of --clusterprofile-provider-file cannot be used: %w", err)
	}
	config, err := own.BuildConfigFromCP(profile)
	if err != nil {
		return nil, badCredentials("status.accessProviders of the ClusterProfile and --clusterprofile-provider-file do not fit each other: %w", err)
	}
	return config, nil
}

func copyOf(providers *access.Config) (*access.Config, error) {
	all := make([]access.Provider, len(providers.Providers))
	for i, provider := range providers.Providers {
		if provider.ExecConfig == nil {
			return nil, fmt.Errorf("provider %q has no execConfig", provider.Name)
		}
		all[i] = provider
		all[i].ExecConfig = provider.ExecConfig.DeepCopy()
	}
	return access.New(all), nil
}

// fingerprintOf takes what a connection depends on.
func fingerprintOf(parts ...any) fingerprint {
	content, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings, bytes, and types of the API
	}
	return sha256.Sum256(content)
}
