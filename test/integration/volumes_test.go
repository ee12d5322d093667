package integration

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// soon bounds the time in which a pod is bound after an event wakes it. Without an event the pod waits twice as long, see waitUntilTriesAreRare.
const soon = 2 * time.Second

// twoNodes creates a node in each of two pools and zones, with unique names.
func twoNodes(t *testing.T) (a, b string) {
	t.Helper()
	a, b = nodeIn(t, "a"), nodeIn(t, "b")
	nodes(t,
		sandbox.NewNode(a, "zone-a", map[string]string{"pool": "a"}, nil, nil),
		sandbox.NewNode(b, "zone-b", map[string]string{"pool": "b"}, nil, nil))
	return a, b
}

// deleteAfter deletes a cluster-scoped object after the test. Objects that still protect it are deleted with the test's namespace.
func deleteAfter(t *testing.T, remove func(context.Context, string, metav1.DeleteOptions) error, name string) {
	t.Helper()
	t.Cleanup(func() {
		if err := remove(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// storageClass creates a class without a provisioner. Its volumes are bound when their first pod is scheduled.
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
	deleteAfter(t, the.Client.StorageV1().StorageClasses().Delete, name)
	return name
}

// volume creates a persistent volume of the class. source is YAML that says what the volume is and where.
func volume(t *testing.T, name, class, labels, source string) {
	t.Helper()
	apply(t, "", fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s, labels: {%s}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: %s
  %s
`, name, labels, class, source))
	deleteAfter(t, the.Client.CoreV1().PersistentVolumes().Delete, name)
}

// where is the source of a local volume that nodes with this label value can use.
func where(label, value string) string {
	return fmt.Sprintf("local: {path: /data}\n  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: %s, operator: In, values: [%s]}]}]}}", label, value)
}

// boundClaim creates a claim "data" that is already bound to the volume, as after a restore from a backup. If the controllers bound it, that could
// take 15 seconds, because their workers block each other.
func boundClaim(t *testing.T, ns, class, volume string) {
	t.Helper()
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, annotations: {pv.kubernetes.io/bind-completed: "yes"}}
spec: {accessModes: [ReadWriteMany], storageClassName: %s, volumeName: %s, resources: {requests: {storage: 1Gi}}}
`, class, volume))
}

// withVolume is a Deployment. Each of its pods has its own volume.
func withVolume(class string, replicas int) string {
	return deployment("web", replicas, fmt.Sprintf(`
      volumes:
      - name: data
        ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteMany], storageClassName: %s, resources: {requests: {storage: 1Gi}}}}}
`, class))
}

// withClaim is a Deployment. All of its pods share the volume of the claim "data".
func withClaim(replicas int) string {
	return deployment("web", replicas, "      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n")
}

// volumeLimit sets how many volumes of the driver a node can attach.
func volumeLimit(t *testing.T, node, driver string, count int) {
	t.Helper()
	apply(t, "", fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: %[1]s}
spec: {drivers: [{name: %[2]s, nodeID: %[1]s, topologyKeys: [], allocatable: {count: %[3]d}}]}
`, node, driver, count))
}

// csiVolume creates a driver whose volumes need no attachment, and a volume that every node can use. Both have the name of the class.
func csiVolume(t *testing.T, class string, limited ...string) {
	t.Helper()
	apply(t, "", fmt.Sprintf("{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: %s}, spec: {attachRequired: false}}", class))
	deleteAfter(t, the.Client.StorageV1().CSIDrivers().Delete, class)
	volume(t, class, class, "", fmt.Sprintf("csi: {driver: %[1]s, volumeHandle: %[1]s}", class))
	for _, node := range limited {
		volumeLimit(t, node, class, 0)
		deleteAfter(t, the.Client.StorageV1().CSINodes().Delete, node)
	}
}

// watchRefusals watches the messages of the namespace's pods while they have no node. The returned function waits until a pod has moved on from the
// first subset for this reason. Events do not work here: of several events about one pod the API keeps only the text of the first.
func watchRefusals(t *testing.T, ns string) (expect func(reason string)) {
	t.Helper()
	pods, err := the.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pods.Stop)
	return func(reason string) {
		t.Helper()
		timeout := time.After(harness.Timeout)
		var told []string
		for {
			select {
			case event, open := <-pods.ResultChan():
				pod, isPod := event.Object.(*corev1.Pod)
				if !open || !isPod {
					t.Fatalf("the watch has ended: %+v; the pods were told %q", event.Object, told)
				}
				for _, c := range pod.Status.Conditions {
					if c.Type != corev1.PodScheduled {
						continue
					}
					if strings.Contains(c.Message, reason) && strings.HasSuffix(c.Message, `. no node in subset "a", going on to the next`) {
						return
					}
					told = append(told, c.Message)
				}
			case <-timeout:
				t.Fatalf("the pods were told %q, want %q", told, reason)
			}
		}
	}
}

// counter reads one of the scheduler's counters, including its labels. It returns 0 if the counter does not exist yet.
func counter(ctx context.Context, t *testing.T, series string) int {
	t.Helper()
	text, err := metricsOf(ctx, the, product.Scheduler, 0)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, series+" "); found {
			count, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	return 0
}

// exhausted counts the attempts in which a pod found no node in any subset.
const exhausted = `scheduler_workloadspread_subset_attempts_total{result="exhausted"}`

// waitUntilTriesAreRare waits for the third attempt of the cluster's only exhausted pod since the count was taken. Without an event the scheduler
// tries the pod again after 1, 2 and then 4 seconds. If the pod finds room within half of that, an event must be the reason.
func waitUntilTriesAreRare(t *testing.T, before int) {
	t.Helper()
	waitFor(t, "the pod to be tried three times", func(ctx context.Context) (string, error) {
		if tries := counter(ctx, t, exhausted) - before; tries < 3 {
			return fmt.Sprintf("%d tries", tries), nil
		}
		return "", nil
	})
}

// expectSoon fails unless the wait ends so early that only an event can be the reason.
func expectSoon(t *testing.T, wait func()) {
	t.Helper()
	started := time.Now()
	wait()
	took := time.Since(started)
	if took > soon {
		t.Errorf("it took %s, want at most %s: no event has woken the pod", took, soon)
	}
	t.Logf("woken and placed after %s", took)
}

func TestAPodWhoseVolumeCanOnlyBeBoundInTheNextSubsetGoesThere(t *testing.T) {
	a, b := twoNodes(t)
	class, ns := storageClass(t), namespace(t)
	volume(t, b+"-1", class, "", where(corev1.LabelHostname, b))
	expectRefusal := watchRefusals(t, ns)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withVolume(class, 1))
	expectSpilled(t, ns, 0, 1)
	expectRefusal("1 node(s) didn't find available persistent volumes to bind")
	// No node has changed. If the scheduler remembered this refusal, it would keep the next pod from the first subset.
	volume(t, a+"-1", class, "", where(corev1.LabelHostname, a))
	scale(t, ns, "web", 2)
	expectSpilled(t, ns, 1, 1)
	expectNoDeletion(t, ns)
}

// TestAPodWhoseVolumeIsOutOfReachInTheFirstSubsetGoesToTheNext: the claim is bound to a volume before any pod uses it.
func TestAPodWhoseVolumeIsOutOfReachInTheFirstSubsetGoesToTheNext(t *testing.T) {
	harness.Long(t)
	zoneB := func(t *testing.T, a string) {
		t.Helper()
		patchNode(t, a, `{"metadata":{"labels":{"topology.kubernetes.io/zone":"zone-b"}}}`)
	}
	tests := map[string]struct {
		reason  string
		make    func(t *testing.T, class, a string)
		restore func(t *testing.T, a string)
	}{
		"its node affinity names another zone": {
			reason: "1 node(s) didn't match PersistentVolume's node affinity",
			make: func(t *testing.T, class, _ string) {
				t.Helper()
				volume(t, class, class, "", where(corev1.LabelTopologyZone, "zone-b"))
			},
			restore: zoneB,
		},
		"its label names another zone": {
			reason: "1 node(s) had no available volume zone",
			make: func(t *testing.T, class, _ string) {
				t.Helper()
				volume(t, class, class, "topology.kubernetes.io/zone: zone-b", "hostPath: {path: /data}")
			},
			restore: zoneB,
		},
		"the node has as many volumes as it can have": {
			reason:  "1 node(s) exceed max volume count",
			make:    func(t *testing.T, class, a string) { t.Helper(); csiVolume(t, class, a) },
			restore: func(t *testing.T, a string) { t.Helper(); volumeLimit(t, a, nodeIn(t, "local"), 1) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a, _ := twoNodes(t)
			class, ns := storageClass(t), namespace(t)
			tc.make(t, class, a)
			boundClaim(t, ns, class, class)
			expectRefusal := watchRefusals(t, ns)
			apply(t, ns, adaptiveSpread)
			apply(t, ns, withClaim(1))
			expectSpilled(t, ns, 0, 1)
			expectRefusal(tc.reason)
			tc.restore(t, a)
			scale(t, ns, "web", 2)
			expectSpilled(t, ns, 1, 1)
			expectNoDeletion(t, ns)
		})
	}
}

func TestAPodThatNoSubsetHasAVolumeForIsWokenByOne(t *testing.T) {
	harness.Long(t)
	a, _ := twoNodes(t)
	class, ns := storageClass(t), namespace(t)
	before := counter(t.Context(), t, exhausted)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withVolume(class, 1))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "NoNodeFits", "a: 0/1 nodes fit: 1 node(s) didn't find available persistent volumes to bind",
			"b: 0/1 nodes fit: 1 node(s) didn't find available persistent volumes to bind")
	})
	waitUntilTriesAreRare(t, before)
	// The pod's last attempt was in b.
	volume(t, a+"-1", class, "", where(corev1.LabelHostname, a))
	// The volume controller sees the volume about a second later. Then it binds the claim.
	expectSoon(t, func() {
		waitFor(t, "the volume to be taken", func(ctx context.Context) (string, error) {
			object, err := the.Client.CoreV1().PersistentVolumes().Get(ctx, a+"-1", getOptions)
			if err != nil || object.Spec.ClaimRef != nil {
				return "", err
			}
			return "it is free", nil
		})
	})
	expectSpilled(t, ns, 1, 0)
	expectNoDeletion(t, ns)
}

func TestAPodThatEveryVolumeLimitRefusesIsWokenWhenOneIsRaised(t *testing.T) {
	harness.Long(t)
	a, b := twoNodes(t)
	class, ns := storageClass(t), namespace(t)
	csiVolume(t, class, a, b)
	boundClaim(t, ns, class, class)
	before := counter(t.Context(), t, exhausted)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, withClaim(1))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "NoNodeFits", "a: 0/1 nodes fit: 1 node(s) exceed max volume count", "b: 0/1 nodes fit: 1 node(s) exceed max volume count")
	})
	waitUntilTriesAreRare(t, before)
	volumeLimit(t, a, class, 1)
	expectSoon(t, func() { expectSpilled(t, ns, 1, 0) })
	expectNoDeletion(t, ns)
}
