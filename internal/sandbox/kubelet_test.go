package sandbox

import (
	"errors"
	"net"
	"testing"
)

func TestTheNetworkOfNodesIsFree(t *testing.T) {
	for name, tc := range map[string]struct {
		seed byte
		used string
		want string
	}{
		"the first choice":                      {seed: 2, used: "192.168.0.2/24", want: "10.130.0.0/16"},
		"the next one, if it is another's":      {seed: 2, used: "10.130.7.1/24", want: "10.131.0.0/16"},
		"the first one after the last":          {seed: 99, used: "10.227.0.1/16", want: "10.128.0.0/16"},
		"none, if one network is all of 10.0.0": {seed: 2, used: "10.1.2.3/8"},
	} {
		t.Run(name, func(t *testing.T) {
			address, used, err := net.ParseCIDR(tc.used)
			if err != nil {
				t.Fatal(err)
			}
			got, err := freeNetwork(tc.seed, []net.Addr{&net.IPNet{IP: address, Mask: used.Mask}})
			if tc.want == "" && errors.Is(err, errNoNetwork) {
				return
			}
			if err != nil || got.String() != tc.want {
				t.Errorf("got %s, %v, want %q", got, err, tc.want)
			}
		})
	}
}
