package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/sandbox"
)

// twoNodes are a node in each pool, with names of their own.
func twoNodes(t *testing.T) (a, b string) {
	t.Helper()
	a, b = nodeIn(t, "a"), nodeIn(t, "b")
	nodes(t,
		sandbox.NewNode(a, "zone-a", map[string]string{"pool": "a"}, nil, nil),
		sandbox.NewNode(b, "zone-b", map[string]string{"pool": "b"}, nil, nil))
	return a, b
}

// storageClass is one whose volumes are bound when their first pod is scheduled. It goes with the test.
func storageClass(t *testing.T) string {
	t.Helper()
	name := nodeIn(t, "local")
	apply(t, "", fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`, name))
	t.Cleanup(func() {
		if err := the.Client.StorageV1().StorageClasses().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return name
}

// volume makes a persistent volume that can be used where the term says.
func volume(t *testing.T, name, class, key, value string) {
	t.Helper()
	apply(t, "", fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: %s
  local: {path: /data}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: %s, operator: In, values: [%s]}]}]}}
`, name, class, key, value))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		// Nobody runs the pods, so nobody takes the protection away either.
		_, _ = the.Client.CoreV1().PersistentVolumes().Patch(ctx, name, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}) // deleted below in any case
		if err := the.Client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// withVolume is a Deployment each of whose pods has a volume of its own.
func withVolume(class string, replicas int) string {
	return deployment("web", replicas, fmt.Sprintf(`
      volumes:
      - name: data
        ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: %s, resources: {requests: {storage: 1Gi}}}}}
`, class))
}

// expectBoundWithin is how long it took until so many pods ran in each subset; waiting for the five-minute flush of the queue is a failure.
func expectBoundWithin(t *testing.T, ns string, limit time.Duration, inA, inB int) {
	t.Helper()
	started := time.Now()
	expectSpilled(t, ns, inA, inB)
	if took := time.Since(started); took > limit {
		t.Errorf("it took %s, want at most %s", took, limit)
	}
}

func TestAPodWhoseVolumeCanOnlyBeBoundInTheNextSubsetGoesThere(t *testing.T) {
	a, b := twoNodes(t)
	class, ns := storageClass(t), namespace(t)
	volume(t, b+"-1", class, corev1.LabelHostname, b)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withVolume(class, 1))
	expectSpilled(t, ns, 0, 1)
	// A volume in the first subset is used by the next pod.
	volume(t, a+"-1", class, corev1.LabelHostname, a)
	scale(t, ns, "web", 2)
	expectSpilled(t, ns, 1, 1)
	expectNoDeletion(t, ns)
}

func TestAPodThatNoSubsetHasAVolumeForIsWokenByOne(t *testing.T) {
	a, _ := twoNodes(t)
	class, ns := storageClass(t), namespace(t)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withVolume(class, 1))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "a: 0/1 nodes fit: 1 node(s) didn't find available persistent volumes to bind", "b: 0/1 nodes fit")
	})
	volume(t, a+"-1", class, corev1.LabelHostname, a)
	expectBoundWithin(t, ns, 30*time.Second, 1, 0)
	expectNoDeletion(t, ns)
}

func TestAPodWhoseVolumeIsInTheZoneOfTheNextSubsetGoesThere(t *testing.T) {
	_, b := twoNodes(t)
	class, ns := storageClass(t), namespace(t)
	volume(t, b+"-zonal", class, corev1.LabelTopologyZone, "zone-b")
	// The claim is bound before any pod asks for it.
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: %s, volumeName: %s-zonal, resources: {requests: {storage: 1Gi}}}
`, class, b))
	waitFor(t, "the claim to be bound", func(ctx context.Context) (string, error) {
		claim, err := the.Client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, "data", getOptions)
		if err != nil || claim.Status.Phase == corev1.ClaimBound {
			return "", err
		}
		return string(claim.Status.Phase), nil
	})
	apply(t, ns, adaptiveSpread)
	apply(t, ns, deployment("web", 1, "      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n"))
	expectSpilled(t, ns, 0, 1)
	// A pod that needs no volume still begins with the first subset.
	apply(t, ns, strings.ReplaceAll(adaptiveSpread, "web", "plain")+"---"+deployment("plain", 1, ""))
	expectPlaces(t, ns, "a=1 b=1")
	expectNoDeletion(t, ns)
}
