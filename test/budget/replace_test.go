package budget

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// everyPod is a rule by which no pod may go before a new one is there.
const everyPod = "maxUnavailable: 0\n  replaceFirst: {maxPods: %d, timeoutSeconds: %d}"

// controllerOf is the kind of a pod's controller, with a star if the pod has the annotation of a pod that is replaced first.
func controllerOf(pod *corev1.Pod) string {
	kind := ""
	if ref := metav1.GetControllerOf(pod); ref != nil {
		kind = ref.Kind
	}
	if pod.Annotations[v1beta1.ReplacedFirstAnnotation] != "" {
		kind += "*"
	}
	return kind
}

// expectPods waits until there are as many pods as controllers, with those controllers, and until no other pods terminate.
func expectPods(t *testing.T, namespace, what string, controllers ...string) {
	t.Helper()
	poll(t, harness.Timeout, what, func(ctx context.Context) (string, error) {
		all, err := the.Pods(ctx, namespace)
		if err != nil {
			return "", err
		}
		seen, counted := fmt.Sprintf("%d pods: ", len(all)), map[string]int{}
		for i := range all {
			seen += fmt.Sprintf("%s of %s; ", describe(&all[i]), controllerOf(&all[i]))
			counted[controllerOf(&all[i])]++
		}
		for _, controller := range controllers {
			counted[controller]--
		}
		for _, n := range counted {
			if n != 0 {
				return seen, nil
			}
		}
		return map[bool]string{false: seen}[len(all) == len(controllers)], nil
	})
}

// nothingLeft waits until there are n available pods of ReplicaSets and no other pods, and the budget replaces none.
func nothingLeft(t *testing.T, namespace string, n int) {
	t.Helper()
	expectPods(t, namespace, "pods of the ReplicaSet alone", strings.Split(strings.Repeat(",ReplicaSet", n), ",")[1:]...)
	inForce(t, namespace, n)
	poll(t, harness.Timeout, "no pod to be replaced", func(ctx context.Context) (string, error) {
		b, err := read(ctx, namespace)
		return map[bool]string{false: fmt.Sprintf("%+v", b.Status.Replacing)}[len(b.Status.Replacing) == 0], err
	})
	set, err := the.Client.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *set.Spec.Replicas != int32(n) {
		t.Errorf("the Deployment asks for %v pods, %v; nobody may change that", set.Spec.Replicas, err)
	}
}

// cordonAll keeps new pods from all nodes until the returned function is called, or the test ends.
func cordonAll(t *testing.T) (uncordon func()) {
	t.Helper()
	nodes, err := the.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	expectAllowed(t, "cordon", kubectl(t.Context(), append([]string{"cordon"}, names...)...))
	var once sync.Once
	uncordon = func() {
		once.Do(func() {
			expectAllowed(t, "uncordon", kubectl(context.Background(), append([]string{"uncordon"}, names...)...))
		})
	}
	t.Cleanup(uncordon)
	return uncordon
}

// TestADrainOfTheOnlyPodMakesANewOneFirst: case 25.
func TestADrainOfTheOnlyPodMakesANewOneFirst(t *testing.T) {
	namespace := web(t, 1, "minAvailable: 1\n  replaceFirst: {}")
	watch(t, namespace, 1)
	old := pods(t, namespace)[0]
	defer func() { expectAllowed(t, "uncordon", kubectl(t.Context(), "uncordon", old.Spec.NodeName)) }()
	expectAllowed(t, "drain", kubectl(t.Context(), "drain", old.Spec.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=web", "--timeout=80s"))
	nothingLeft(t, namespace, 1)
	if now := pods(t, namespace)[0]; now.UID == old.UID || now.Spec.NodeName == old.Spec.NodeName {
		t.Errorf("pod %s is on the node", now.Name)
	}
}

// TestTwoDrainsAtOnceReplaceAllPods has two clients that evict all pods again and again. No more than two are handed over at a time.
func TestTwoDrainsAtOnceReplaceAllPods(t *testing.T) {
	namespace := web(t, 4, fmt.Sprintf(everyPod, 2, 600))
	watch(t, namespace, 4)
	old := map[types.UID]bool{}
	for _, pod := range pods(t, namespace) {
		old[pod.UID] = true
	}
	var drains sync.WaitGroup
	for range 2 {
		drains.Go(func() {
			for begun := time.Now(); time.Since(begun) < 2*harness.Timeout; {
				left, handed := 0, 0
				all, err := the.Pods(t.Context(), namespace)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range all {
					if controllerOf(&all[i]) == "Deployment*" && all[i].DeletionTimestamp == nil {
						handed++
					}
					if !old[all[i].UID] {
						continue
					}
					left++
					if err := evict(t.Context(), &all[i]); err != nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
						t.Error(err)
					}
				}
				if handed > 2 {
					t.Errorf("%d pods are handed over at a time", handed)
				}
				if left == 0 {
					return
				}
				select {
				case <-t.Context().Done():
				case <-time.After(50 * time.Millisecond): // as a drain waits between its attempts
				}
			}
			t.Error("a drain has not ended")
		})
	}
	drains.Wait()
	nothingLeft(t, namespace, 4)
}

// begin asks for the eviction of a pod while no new pod can start. It returns once the pod is handed over.
func begin(t *testing.T, replicas int, rule string) (namespace string, w *watcher, old corev1.Pod, uncordon func()) {
	t.Helper()
	namespace = web(t, replicas, rule)
	w = watch(t, namespace, replicas)
	uncordon = cordonAll(t)
	old = pods(t, namespace)[0]
	err := evict(t.Context(), &old)
	expectRefused(t, "the eviction", err)
	if !strings.Contains(fmt.Sprint(err), "a new pod is made first; try again") {
		t.Errorf("the refusal does not say that it is worth to try again: %v", err)
	}
	controllers := []string{"Deployment*", "ReplicaSet"}
	for range replicas - 1 {
		controllers = append(controllers, "ReplicaSet")
	}
	expectPods(t, namespace, "a new pod", controllers...)
	return namespace, w, old, uncordon
}

func announced(t *testing.T, namespace, reason, text string) {
	t.Helper()
	waitFor(t, "an event", func(ctx context.Context) (string, error) {
		events, err := the.Client.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return "", err
		}
		all := ""
		for i := range events.Items {
			if all += events.Items[i].Note + "; "; strings.Contains(events.Items[i].Note, text) {
				return "", nil
			}
		}
		return "only " + all, nil
	})
}

func TestAPodWhoseReplacementDoesNotStartIsTakenBack(t *testing.T) {
	namespace, _, old, uncordon := begin(t, 1, fmt.Sprintf(everyPod, 1, 5))
	announced(t, namespace, string(v1beta1.ReasonNotReplaced), "is not scheduled: ")
	nothingLeft(t, namespace, 1)
	if now := pods(t, namespace)[0]; now.UID != old.UID {
		t.Errorf("pod %s has taken its place", now.Name)
	}
	uncordon()
	nothingLeft(t, namespace, 1)
}

// TestAQuotaThatForbidsASecondPodLosesNone has no room for a new pod until somebody makes some.
func TestAQuotaThatForbidsASecondPodLosesNone(t *testing.T) {
	namespace := web(t, 1, fmt.Sprintf(everyPod, 1, 5))
	watch(t, namespace, 1)
	apply(t, namespace, "{apiVersion: v1, kind: ResourceQuota, metadata: {name: one}, spec: {hard: {pods: 1}}}")
	waitFor(t, "the quota", func(ctx context.Context) (string, error) {
		quota, err := the.Client.CoreV1().ResourceQuotas(namespace).Get(ctx, "one", metav1.GetOptions{})
		return map[bool]string{false: "it counts nothing"}[err == nil && quota.Status.Used.Pods().Value() == 1], err
	})
	old := pods(t, namespace)[0]
	expectRefused(t, "the eviction", evict(t.Context(), &old))
	announced(t, namespace, string(v1beta1.ReasonNotReplaced), "no new pod was ready within 5s")
	nothingLeft(t, namespace, 1)
	if now := pods(t, namespace)[0]; now.UID != old.UID {
		t.Errorf("pod %s has taken its place", now.Name)
	}
}

// TestWhatHappensWhileAPodIsReplacedFirst changes the world while no new pod can start.
func TestWhatHappensWhileAPodIsReplacedFirst(t *testing.T) {
	patched := func(t *testing.T, namespace, body string) {
		t.Helper()
		_, err := the.Client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
		expectAllowed(t, "the change", err)
	}
	gone := func(t *testing.T, namespace string) { t.Helper(); expectPods(t, namespace, "no pods") }
	for name, tc := range map[string]struct {
		// floor is how many pods must be available from now on.
		floor  int
		change func(t *testing.T, namespace string, uncordon func())
		check  func(t *testing.T, namespace string, old *corev1.Pod)
	}{
		"the workload is deleted": {change: func(t *testing.T, namespace string, _ func()) {
			expectAllowed(t, "deleting it", the.Client.AppsV1().Deployments(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
		}, check: func(t *testing.T, namespace string, _ *corev1.Pod) { gone(t, namespace) }},
		"the workload is scaled to none": {change: func(t *testing.T, namespace string, _ func()) {
			patched(t, namespace, `{"spec":{"replicas":0}}`)
		}, check: func(t *testing.T, namespace string, _ *corev1.Pod) { gone(t, namespace) }},
		"the workload is scaled up": {floor: 2, change: func(t *testing.T, namespace string, uncordon func()) {
			patched(t, namespace, `{"spec":{"replicas":3}}`)
			uncordon()
		}, check: func(t *testing.T, namespace string, _ *corev1.Pod) { nothingLeft(t, namespace, 3) }},
		"a rollout": {floor: 2, change: func(t *testing.T, namespace string, uncordon func()) {
			patched(t, namespace, `{"spec":{"strategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}},"template":{"spec":{"containers":[{"name":"main","image":"`+nextImage+`"}]}}}}`)
			uncordon()
		}, check: func(t *testing.T, namespace string, _ *corev1.Pod) {
			poll(t, harness.Timeout, "the rollout", func(context.Context) (string, error) {
				all := pods(t, namespace)
				for i := range all {
					if all[i].Spec.Containers[0].Image != nextImage || !isAvailable(&all[i]) {
						return describe(&all[i]), nil
					}
				}
				return map[bool]string{false: "not 2 pods"}[len(all) == 2], nil
			})
			nothingLeft(t, namespace, 2)
		}},
		"another controller takes over": {floor: 2, change: func(t *testing.T, _ string, uncordon func()) {
			withController(t, 0)
			uncordon()
		}, check: func(t *testing.T, namespace string, old *corev1.Pod) {
			nothingLeft(t, namespace, 2)
			for _, pod := range pods(t, namespace) {
				if pod.UID == old.UID {
					t.Error("the pod is still there, and nobody had to ask again")
				}
			}
		}},
		"the budget does not ask for it any more": {floor: 2, change: func(t *testing.T, namespace string, _ func()) {
			b, err := read(t.Context(), namespace)
			if err != nil {
				t.Fatal(err)
			}
			b.Spec.ReplaceFirst = nil
			expectAllowed(t, "the edit", berth.client().Update(t.Context(), b))
		}, check: func(t *testing.T, namespace string, _ *corev1.Pod) { nothingLeft(t, namespace, 2) }},
		"the budget is deleted": {change: func(t *testing.T, namespace string, _ func()) {
			b, err := read(t.Context(), namespace)
			if err != nil {
				t.Fatal(err)
			}
			expectAllowed(t, "deleting it", berth.client().Delete(t.Context(), b))
		}, check: func(t *testing.T, namespace string, _ *corev1.Pod) {
			expectPods(t, namespace, "the pods of the ReplicaSet alone", "ReplicaSet", "ReplicaSet")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			namespace, w, old, uncordon := begin(t, 2, fmt.Sprintf(everyPod, 1, 600))
			w.setFloor(tc.floor)
			tc.change(t, namespace, uncordon)
			tc.check(t, namespace, &old)
			uncordon()
		})
	}
}

// promised evicts a pod, once. The refusal must say that a new pod is made first, and the eviction is carried out then.
func promised(t *testing.T, namespace string, replicas int) (old corev1.Pod) {
	t.Helper()
	watch(t, namespace, replicas)
	old = pods(t, namespace)[0]
	if err := evict(t.Context(), &old); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "a new pod is made first; try again") {
		t.Errorf("got %v", err)
	}
	return old
}

func expectReplaced(t *testing.T, namespace string, old *corev1.Pod, replicas int) {
	t.Helper()
	waitFor(t, "the pod to go", func(context.Context) (string, error) {
		return map[bool]string{true: "it is there"}[slices.ContainsFunc(pods(t, namespace), func(pod corev1.Pod) bool { return pod.UID == old.UID })], nil
	})
	nothingLeft(t, namespace, replicas)
}

// TestATaintHasANewPodMadeFirst: Kubernetes asks a few times within a second, and then never again.
func TestATaintHasANewPodMadeFirst(t *testing.T) {
	namespace := web(t, 1, "minAvailable: 1\n  replaceFirst: {}")
	watch(t, namespace, 1)
	old := pods(t, namespace)[0]
	taint(t, old.Spec.NodeName, corev1.Taint{Key: "test/go", Effect: corev1.TaintEffectNoExecute})
	expectReplaced(t, namespace, &old, 1)
	if now := pods(t, namespace)[0]; now.Spec.NodeName == old.Spec.NodeName {
		t.Errorf("pod %s is on the node with the taint", now.Name)
	}
}

// TestTheVolumeOfAPodDecidesWhetherItIsReplacedFirst has a volume that one node may write, and one that all may write.
func TestTheVolumeOfAPodDecidesWhetherItIsReplacedFirst(t *testing.T) {
	const volume = `
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec: {capacity: {storage: 1Gi}, accessModes: [%[2]s], hostPath: {path: /tmp}, claimRef: {namespace: %[1]s, name: data}, persistentVolumeReclaimPolicy: Retain}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: %[1]s}
spec: {accessModes: [%[2]s], storageClassName: "", volumeName: %[1]s, resources: {requests: {storage: 1Gi}}}
---
`
	for _, mode := range []string{"ReadWriteMany", "ReadWriteOnce"} {
		t.Run(mode, func(t *testing.T) {
			namespace := newNamespace(t)
			t.Cleanup(func() {
				if err := the.Client.CoreV1().PersistentVolumes().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			claimed := strings.Replace(fmt.Sprintf(deployment, 1), "      containers:", "      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n      containers:", 1)
			apply(t, namespace, fmt.Sprintf(volume, namespace, mode)+claimed+"---"+fmt.Sprintf(pub, "minAvailable: 1\n  replaceFirst: {}"))
			inForce(t, namespace, 1)
			if mode == "ReadWriteMany" {
				old := promised(t, namespace, 1)
				expectReplaced(t, namespace, &old, 1)
				return
			}
			watch(t, namespace, 1)
			err := evict(t.Context(), &pods(t, namespace)[0])
			expectRefused(t, "the eviction", err)
			if !strings.Contains(fmt.Sprint(err), "no new pod is made first, because only one pod, or the pods of one node, may write volume claim data") {
				t.Errorf("got %v", err)
			}
			nothingLeft(t, namespace, 1)
		})
	}
}

// TestAPodOfTwoBudgetsIsReplacedFirst: one budget selects the pods, and the other names their Deployment. Neither has room.
func TestAPodOfTwoBudgetsIsReplacedFirst(t *testing.T) {
	namespace := web(t, 2, "maxUnavailable: 0\n  replaceFirst: {}")
	second := strings.Replace(fmt.Sprintf(ownBudget, "targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}", "minAvailable: 2\n  replaceFirst: {}"), "name: web}\nspec", "name: second}\nspec", 1)
	apply(t, namespace, second)
	waitFor(t, "the second budget", func(ctx context.Context) (string, error) {
		b := &v1beta1.PodUnavailableBudget{}
		err := berth.client().Get(ctx, types.NamespacedName{Namespace: namespace, Name: "second"}, b)
		return map[bool]string{false: fmt.Sprintf("%+v", b.Status)}[b.Status.CurrentAvailable == 2], err
	})
	old := promised(t, namespace, 2)
	expectReplaced(t, namespace, &old, 2)
}

// TestASubsetWithoutRoomHasANewPodMadeFirst: the pods of two zones are of one Deployment, and no pod of a zone may be unavailable.
func TestASubsetWithoutRoomHasANewPodMadeFirst(t *testing.T) {
	inZones(t, "a", "b")
	namespace := newNamespace(t)
	apply(t, namespace, fmt.Sprintf(pub, "perSubset: {label: topology.kubernetes.io/zone, maxUnavailable: 0}\n  replaceFirst: {}")+twoZones)
	inForce(t, namespace, 4)
	old := promised(t, namespace, 4)
	expectReplaced(t, namespace, &old, 4)
}

// TestWhoMayHandAPodOver tries what Berth's account must not do to pods.
func TestWhoMayHandAPodOver(t *testing.T) {
	namespace := web(t, 1, "minAvailable: 1")
	pod := pods(t, namespace)[0]
	for what, body := range map[string]string{
		"the annotation alone": `{"metadata":{"annotations":{"policy.berth.dev/replaced-first":"{}"}}}`,
		"the owner alone":      `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"x","controller":true}]}}`,
		"no owner":             `{"metadata":{"annotations":{"policy.berth.dev/replaced-first":"{}"},"ownerReferences":null}}`,
		"another kind of owner": `{"metadata":{"annotations":{"policy.berth.dev/replaced-first":"{}"},
			"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"web","uid":"x","controller":true}]}}`,
	} {
		if err := asController(t, &pod, body); !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want Forbidden", what, err)
		}
	}
}
