//go:build kubernetes_1_37

package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// TestAPodFindsDevicesThatAClassServesAsItsResource: from 1.36 on, a DeviceClass can say that its devices are an extended resource of pods.
func TestAPodFindsDevicesThatAClassServesAsItsResource(t *testing.T) {
	a, _ := twoNodes(t)
	driver, ns := nodeIn(t, "driver")+".example.com", namespace(t)
	devices(t, driver, a, 1)
	apply(t, ns, adaptiveSpread)
	resources := fmt.Sprintf("pause:3.10, resources: {requests: {%[1]s/gpu: 1}, limits: {%[1]s/gpu: 1}}", driver)
	apply(t, ns, strings.Replace(deployment("web", 1, ""), "pause:3.10", resources, 1))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "NoNodeFits", "a: 0/1 nodes fit: 1 Insufficient", "b: 0/1 nodes fit: 1 Insufficient")
	})
	// No node changes.
	apply(t, "", fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %[1]s}
spec:
  extendedResourceName: %[1]s/gpu
  selectors: [{cel: {expression: "device.driver == '%[1]s'"}}]
`, driver))
	deleteAfter(t, the.Client.ResourceV1().DeviceClasses().Delete, driver)
	expectSoon(t, func() { expectSpilled(t, ns, 1, 0) })
	expectNoDeletion(t, ns)
}
