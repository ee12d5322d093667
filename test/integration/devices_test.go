package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deviceClass makes a class of devices that are told by their driver, which is the test's own. It goes with the test.
func deviceClass(t *testing.T) string {
	t.Helper()
	name := nodeIn(t, "driver") + ".example.com"
	apply(t, "", fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %[1]s}
spec: {selectors: [{cel: {expression: device.driver == "%[1]s"}}]}
`, name))
	t.Cleanup(func() {
		if err := the.Client.ResourceV1().DeviceClasses().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return name
}

// devices offers so many devices on a node.
func devices(t *testing.T, class, node string, count int) {
	t.Helper()
	list := ""
	for i := range count {
		list += fmt.Sprintf("\n  - {name: device-%d}", i)
	}
	apply(t, "", fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %[2]s-%[1]s}
spec:
  driver: %[1]s
  nodeName: %[2]s
  pool: {name: %[2]s, generation: 1, resourceSliceCount: 1}
  devices:%[3]s
`, class, node, list))
	t.Cleanup(func() {
		if err := the.Client.ResourceV1().ResourceSlices().Delete(context.WithoutCancel(t.Context()), node+"-"+class, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// withDevice is a Deployment each of whose pods claims a device.
func withDevice(class string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: device}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: %s}}]}}}
---`, class) + deployment("web", replicas, "      resourceClaims: [{name: device, resourceClaimTemplateName: device}]\n")
}

func TestAPodWhoseDeviceIsInTheNextSubsetGoesThere(t *testing.T) {
	a, b := twoNodes(t)
	class, ns := deviceClass(t), namespace(t)
	devices(t, class, b, 1)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withDevice(class, 1))
	expectSpilled(t, ns, 0, 1)
	devices(t, class, a, 1)
	scale(t, ns, "web", 2)
	expectSpilled(t, ns, 1, 1)
	expectNoDeletion(t, ns)
}

func TestAPodThatNoSubsetHasADeviceForIsWokenByOne(t *testing.T) {
	a, _ := twoNodes(t)
	class, ns := deviceClass(t), namespace(t)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withDevice(class, 1))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "a: 0/1 nodes fit: 1 cannot allocate all claims", "b: 0/1 nodes fit: 1 cannot allocate all claims")
	})
	devices(t, class, a, 1)
	expectBoundWithin(t, ns, 30*time.Second, 1, 0)
	expectNoDeletion(t, ns)
}
