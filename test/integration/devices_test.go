package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/test/harness"
)

// deviceClass creates a class of devices of the test's own driver. Further expressions can narrow it.
func deviceClass(t *testing.T, more ...string) string {
	t.Helper()
	name := nodeIn(t, "driver") + ".example.com"
	selectors := ""
	for _, expression := range append([]string{fmt.Sprintf("device.driver == %q", name)}, more...) {
		selectors += fmt.Sprintf("\n  - {cel: {expression: %q}}", expression)
	}
	apply(t, "", fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %s}
spec:
  selectors:%s
`, name, selectors))
	deleteAfter(t, the.Client.ResourceV1().DeviceClasses().Delete, name)
	return name
}

// devices publishes this number of devices on a node.
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
	deleteAfter(t, the.Client.ResourceV1().ResourceSlices().Delete, node+"-"+class)
}

// claimTemplate is a template of claims for one device.
func claimTemplate(class string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: device}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: %s}}]}}}
---`, class)
}

// withDevice is a Deployment. Each of its pods claims its own device.
func withDevice(class string, replicas int) string {
	return claimTemplate(class) + deployment("web", replicas, "      resourceClaims: [{name: device, resourceClaimTemplateName: device}]\n")
}

// refuseBinds makes the API server refuse every bind in the namespace. Call end to stop that.
func refuseBinds(t *testing.T, ns string) (end func()) {
	t.Helper()
	return refuse(t, ns, "binding", func(ctx context.Context) error {
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "nobody"}, Target: corev1.ObjectReference{Kind: "Node", Name: "nowhere"}}
		return the.Client.CoreV1().Pods(ns).Bind(ctx, binding, metav1.CreateOptions{})
	})
}

// refuse makes the API server refuse to create a subresource of pods in the namespace. It calls try until that is refused. Call end to stop that.
func refuse(t *testing.T, ns, subresource string, try func(context.Context) error) (end func()) {
	t.Helper()
	name := "refuse-" + subresource + "-" + ns
	apply(t, "", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[2]s}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/%[3]s]}]
  validations: [{expression: "false", reason: Forbidden, message: refused by the test}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`, name, ns, subresource))
	policies := the.Client.AdmissionregistrationV1()
	deleteAfter(t, policies.ValidatingAdmissionPolicies().Delete, name)
	end = func() {
		t.Helper()
		if err := policies.ValidatingAdmissionPolicyBindings().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	waitFor(t, "it to be refused", func(ctx context.Context) (string, error) {
		err := try(ctx)
		if apierrors.IsForbidden(err) {
			return "", nil
		}
		return fmt.Sprint(err), nil
	})
	return end
}

// waitForClaim waits until the namespace's only claim meets the condition.
func waitForClaim(t *testing.T, ns, what string, condition func(resourcev1.ResourceClaimStatus) bool) {
	t.Helper()
	waitFor(t, "the claim to be "+what, func(ctx context.Context) (string, error) {
		list, err := the.Client.ResourceV1().ResourceClaims(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		if len(list.Items) != 1 {
			return fmt.Sprintf("%d claims", len(list.Items)), nil
		}
		if status := list.Items[0].Status; !condition(status) {
			return fmt.Sprintf("%+v", status), nil
		}
		return "", nil
	})
}

func TestAPodWhoseDeviceIsInTheNextSubsetGoesThere(t *testing.T) {
	a, b := twoNodes(t)
	class, ns := deviceClass(t), namespace(t)
	devices(t, class, b, 1)
	expectRefusal := watchRefusals(t, ns)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withDevice(class, 1))
	expectSpilled(t, ns, 0, 1)
	expectRefusal("1 cannot allocate all claims")
	devices(t, class, a, 1)
	scale(t, ns, "web", 2)
	expectSpilled(t, ns, 1, 1)
	expectNoDeletion(t, ns)
}

func TestAPodThatNoSubsetHasADeviceForIsWokenByOne(t *testing.T) {
	harness.Long(t)
	a, _ := twoNodes(t)
	class, ns := deviceClass(t), namespace(t)
	before := counter(t.Context(), t, exhausted)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withDevice(class, 1))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "NoNodeFits", "a: 0/1 nodes fit: 1 cannot allocate all claims", "b: 0/1 nodes fit: 1 cannot allocate all claims")
	})
	waitUntilTriesAreRare(t, before)
	// The pod's last attempt was in b.
	devices(t, class, a, 1)
	expectSoon(t, func() { expectSpilled(t, ns, 1, 0) })
	expectNoDeletion(t, ns)
}

func TestAPodThatWaitsForADeviceIsWokenWhenOneIsGivenBack(t *testing.T) {
	harness.Long(t)
	a, _ := twoNodes(t)
	class, ns := deviceClass(t), namespace(t)
	devices(t, class, a, 1)
	apply(t, ns, claimTemplate(class)+`
apiVersion: v1
kind: Pod
metadata: {name: blocker}
spec:
  schedulerName: berth-scheduler
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: registry.k8s.io/pause:3.10}]
  resourceClaims: [{name: device, resourceClaimTemplateName: device}]
`)
	expectPlaces(t, ns, "a=1 b=0")
	before := counter(t.Context(), t, exhausted)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withDevice(class, 1))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "NoNodeFits", "a: 0/1 nodes fit: 1 cannot allocate all claims", "b: 0/1 nodes fit: 1 cannot allocate all claims")
	})
	waitUntilTriesAreRare(t, before)
	// The device is not free as soon as the pod is deleted. It is free a moment later, when the pod's generated claim is deleted too.
	removeBlocker(t, ns, a)
	expectSoon(t, func() { expectSpilled(t, ns, 1, 0) })
	expectNoDeletion(t, ns)
}

func TestPodsThatShareAClaimRunWhereItsDeviceIs(t *testing.T) {
	a, b := twoNodes(t)
	class, ns := deviceClass(t), namespace(t)
	devices(t, class, b, 1)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: device}, spec: {devices: {requests: [{name: one, exactly: {deviceClassName: %s}}]}}}", class))
	apply(t, ns, deployment("web", 2, "      resourceClaims: [{name: device, resourceClaimName: device}]\n"))
	expectSpilled(t, ns, 0, 2)
	devices(t, class, a, 1) // the pod's claim has another device
	scale(t, ns, "web", 3)
	expectSpilled(t, ns, 0, 3)
	expectNoDeletion(t, ns)
}

func TestARefusedBindLosesNoDevice(t *testing.T) {
	harness.Long(t)
	a, b := twoNodes(t)
	class, ns := deviceClass(t), namespace(t)
	devices(t, class, a, 1)
	devices(t, class, b, 1)
	accept := refuseBinds(t, ns)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withDevice(class, 1))
	waitForClaim(t, ns, "given back by the pod, and to keep its device", func(status resourcev1.ResourceClaimStatus) bool {
		return status.Allocation != nil && status.Allocation.Devices.Results[0].Pool == a && len(status.ReservedFor) == 0
	})
	// The pod goes to the next subset with the same claim.
	patchNode(t, a, `{"spec":{"unschedulable":true}}`)
	accept()
	expectSpilled(t, ns, 0, 1)
	waitForClaim(t, ns, "for a device of the other node", func(status resourcev1.ResourceClaimStatus) bool {
		return status.Allocation != nil && status.Allocation.Devices.Results[0].Pool == b && len(status.ReservedFor) == 1
	})
	// So the next pod can use the first device.
	patchNode(t, a, `{"spec":{"unschedulable":null}}`)
	waitForTaint(t, a, false)
	scale(t, ns, "web", 2)
	expectSpilled(t, ns, 1, 1)
	expectNoDeletion(t, ns)
}

// slow is an expression that takes long enough to evaluate that a test can act in the middle of a pod's cycle: 0.4 seconds in line 1.35, and 0.15 in line 1.37.
var slow = func() string {
	expression := "true"
	for _, variable := range []string{"v", "w", "x", "y", "z"} {
		expression = fmt.Sprintf("[0,1,2,3,4,5,6,7,8].all(%s, %s)", variable, expression)
	}
	return expression
}()

func TestARefusedReservationLosesNoDevice(t *testing.T) {
	harness.Long(t)
	const refused = `scheduler_framework_extension_point_duration_seconds_count{extension_point="Reserve",profile="berth-scheduler",status="Error"}`
	a, b := twoNodes(t)
	class, ns := deviceClass(t, slow), namespace(t)
	devices(t, class, a, 2)
	devices(t, class, b, 2)
	apply(t, ns, adaptiveSpread)
	before := counter(t.Context(), t, refused)
	// The scheduler refuses the reservation of a pod whose cycle began before an edit. The edits come without a pause, so that there is one in every cycle, also
	// where the expression takes only a tenth of a second.
	editing, end := context.WithCancel(t.Context())
	edits := make(chan int, 1)
	go func() {
		count := 0
		for ; editing.Err() == nil; count++ {
			edit := fmt.Sprintf(`name: a, patch: {metadata: {annotations: {edit: "%d"}}}, req`, count)
			if err := the.ApplyYAML(editing, ns, strings.Replace(adaptiveSpread, "name: a, req", edit, 1)); err != nil && editing.Err() == nil {
				t.Error(err)
				break
			}
		}
		edits <- count
	}()
	apply(t, ns, withDevice(class, 4))
	waitFor(t, "reservations to be refused", func(ctx context.Context) (string, error) {
		if found := counter(ctx, t, refused) - before; found < 4 {
			return fmt.Sprintf("%d are", found), nil
		}
		return "", nil
	})
	end()
	t.Logf("%d edits", <-edits)
	// There are as many pods as devices. A lost device would mean one pod less.
	expectSpilled(t, ns, 2, 2)
	expectNoDeletion(t, ns)
}
