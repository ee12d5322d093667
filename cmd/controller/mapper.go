package main

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	// unservedFor is how long it may take until a kind is noticed that the API server did not serve when it was asked
	// about.
	unservedFor = 10 * time.Second
	// mostUnserved bounds the memory: whoever may create pods may name any kind as their owner.
	mostUnserved = 1024
)

// kinds is a mapper that remembers which kinds the API server serves and which it does not. The mapper below it asks
// the API server each time about a kind that it does not know, and a pod names its owner's kind as it likes. Meanwhile
// it holds a lock that it needs for kinds that it knows, too.
type kinds struct {
	meta.RESTMapper
	unserved *cache.LRUExpireCache
	// served has the mappings of kinds, by question. Like the mapper below, kinds does not forget them: there are not
	// more than the API server has served.
	served sync.Map
}

func newKinds(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
	mapper, err := apiutil.NewDynamicRESTMapper(config, client)
	if err != nil {
		return nil, err
	}
	return &kinds{RESTMapper: mapper, unserved: cache.NewLRUExpireCache(mostUnserved)}, nil
}

func (k *kinds) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mappings, err := k.remembered(kind, versions, func() ([]*meta.RESTMapping, error) {
		mapping, err := k.RESTMapper.RESTMapping(kind, versions...)
		return []*meta.RESTMapping{mapping}, err
	})
	if err != nil {
		return nil, err
	}
	return mappings[0], nil
}

func (k *kinds) RESTMappings(kind schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return k.remembered(kind, slices.Concat([]string{"all"}, versions), func() ([]*meta.RESTMapping, error) { return k.RESTMapper.RESTMappings(kind, versions...) })
}

// remembered asks, unless the answer was a mapping before, or an unknown kind shortly before.
func (k *kinds) remembered(kind schema.GroupKind, versions []string, ask func() ([]*meta.RESTMapping, error)) ([]*meta.RESTMapping, error) {
	key := kind.String() + " " + strings.Join(versions, " ")
	if mappings, known := k.served.Load(key); known {
		return mappings.([]*meta.RESTMapping), nil
	}
	if err, known := k.unserved.Get(key); known {
		return nil, err.(error)
	}
	mappings, err := ask()
	switch {
	case err == nil:
		k.served.Store(key, mappings)
	case meta.IsNoMatchError(err):
		k.unserved.Add(key, err, unservedFor)
	}
	return mappings, err
}
