package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// Two kinds of OpenKruise. The tests act as their controller.
var (
	cloneSets    = &customKind{group: "apps.kruise.io", plural: "clonesets", kind: "CloneSet", version: "v1alpha1", scale: scaleSubresource}
	advancedSets = &customKind{group: "apps.kruise.io", plural: "statefulsets", kind: "StatefulSet", version: "v1beta1", scale: scaleSubresource}
)

func (k *customKind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: k.plural}
}

// in are the objects in a namespace. There are none if the API server does not serve the kind.
func (k *customKind) in(ctx context.Context, ns string) ([]unstructured.Unstructured, error) {
	list, err := the.Dynamic.Resource(k.resource()).Namespace(ns).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// serve applies the definition, and waits until the API server serves the kind, or, if it is to be gone, deletes it and waits for that.
func (k *customKind) serve(t *testing.T, served bool) {
	t.Helper()
	if served {
		apply(t, "", k.definition())
	} else if _, log, failed := kubectl(t, "delete", "--ignore-not-found", "customresourcedefinition", k.plural+"."+k.group); failed {
		t.Fatal(log)
	}
	waitFor(t, fmt.Sprintf("kind %s served is %t", k.kind, served), func(ctx context.Context) (string, error) {
		_, err := the.Dynamic.Resource(k.resource()).List(ctx, metav1.ListOptions{})
		if is := err == nil; is != served {
			return fmt.Sprint(err), nil
		}
		return "", nil
	})
}

// createPod creates a pod of a workload, as its controller does. A name that ends with a dash is generated.
func createPod(ctx context.Context, owner *unstructured.Unstructured, name string, template *corev1.PodTemplateSpec) error {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: template.Spec}
	pod.Name, pod.OwnerReferences = name, []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())}
	if strings.HasSuffix(name, "-") {
		pod.Name, pod.GenerateName = "", name
	}
	_, err := the.Client.CoreV1().Pods(owner.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// workloadController does what OpenKruise does for CloneSets and advanced StatefulSets: it keeps as many pods as they ask for, updates them one by one down to
// the partition, and writes the status.
type workloadController struct {
	ns   string
	kind *customKind
	// templates by revision. current is the revision that pods below the partition have, by object.
	templates map[string]*corev1.PodTemplateSpec
	current   map[types.UID]string
}

// control acts as the controller of a kind in a namespace, until the test ends.
func (k *customKind) control(t *testing.T, ns string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	t.Cleanup(func() {
		stop()
		working.Wait()
	})
	objects, err := the.Dynamic.Resource(k.resource()).Namespace(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := the.Client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	news := make(chan struct{}, 1)
	for _, w := range []watch.Interface{objects, pods} {
		working.Go(func() {
			for range w.ResultChan() {
				select {
				case news <- struct{}{}:
				default: // a round follows
				}
			}
		})
	}
	c := &workloadController{ns: ns, kind: k, templates: map[string]*corev1.PodTemplateSpec{}, current: map[types.UID]string{}}
	working.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-news:
				if err := c.round(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("the controller of %s: %v", k.kind, err)
				}
			}
		}
	})
}

func (c *workloadController) round(ctx context.Context) error {
	objects, err := c.kind.in(ctx, c.ns)
	if err != nil {
		return err
	}
	all, err := the.Pods(ctx, c.ns)
	if err != nil {
		return err
	}
	var errs []error
	for i := range objects {
		if objects[i].GetDeletionTimestamp() != nil {
			continue
		}
		pods := slices.DeleteFunc(slices.Clone(all), func(pod corev1.Pod) bool {
			return !metav1.IsControlledBy(&pod, &objects[i]) || pod.DeletionTimestamp != nil
		})
		err := c.reconcile(ctx, &objects[i], pods)
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) { // these are followed by an event
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// workloadSpec are the fields of both kinds that matter here.
type workloadSpec struct {
	Replicas        int
	ReserveOrdinals []int
	Template        corev1.PodTemplateSpec
	UpdateStrategy  struct {
		Partition     int
		RollingUpdate struct{ Partition int }
	}
}

func (c *workloadController) reconcile(ctx context.Context, object *unstructured.Unstructured, pods []corev1.Pod) error {
	var spec workloadSpec
	text, err := json.Marshal(object.Object["spec"])
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		return err
	}
	template, _, _ := unstructured.NestedMap(object.Object, "spec", "template")
	text, err = json.Marshal(template)
	if err != nil {
		return err
	}
	hash := fnv.New32a()
	_, _ = hash.Write(text) // never fails
	latest := fmt.Sprintf("%s-%x", object.GetName(), hash.Sum32())
	if c.templates[latest] == nil {
		spec.Template.Labels[revisionHash] = latest
		c.templates[latest] = &spec.Template
	}
	uid := object.GetUID()
	if c.current[uid] == "" {
		c.current[uid] = latest
	}
	byOrdinal := c.kind == advancedSets
	partition := spec.UpdateStrategy.Partition
	if byOrdinal {
		partition = spec.UpdateStrategy.RollingUpdate.Partition
	}
	count := func(counts func(*corev1.Pod) bool) (n int64) {
		for i := range pods {
			if counts(&pods[i]) {
				n++
			}
		}
		return n
	}
	isLatest := func(pod *corev1.Pod) bool { return pod.Labels[revisionHash] == latest }
	ready, updated := count(isReady), count(isLatest)
	if updated == int64(len(pods)) && len(pods) == spec.Replicas {
		c.current[uid] = latest
	}
	status := map[string]any{"observedGeneration": object.GetGeneration(), "replicas": int64(len(pods)), "readyReplicas": ready, "availableReplicas": ready,
		"updatedReplicas": updated, "updatedReadyReplicas": count(func(pod *corev1.Pod) bool { return isLatest(pod) && isReady(pod) }),
		"updateRevision": latest, "currentRevision": c.current[uid]}
	if before := object.Object["status"]; !reflect.DeepEqual(before, status) {
		object.Object["status"] = status
		if _, err := the.Dynamic.Resource(c.kind.resource()).Namespace(c.ns).UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if byOrdinal {
		return c.keepOrdinals(ctx, object, &spec, pods, partition, latest)
	}
	return c.keepNumber(ctx, object, &spec, pods, partition, latest)
}

const revisionHash = "controller-revision-hash"

// keepNumber is for CloneSets: pods that are not ready go first, and then the newest.
func (c *workloadController) keepNumber(ctx context.Context, object *unstructured.Unstructured, spec *workloadSpec, pods []corev1.Pod, partition int, latest string) error {
	old := func(pod corev1.Pod) bool { return pod.Labels[revisionHash] != latest }
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		first := func(pod *corev1.Pod) int {
			if isReady(pod) {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(first(&a), first(&b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	kept := 0
	for i := range pods {
		if old(pods[i]) {
			kept++
		}
	}
	for range spec.Replicas - len(pods) {
		revision := latest
		if kept < partition {
			revision, kept = c.current[object.GetUID()], kept+1
		}
		if err := createPod(ctx, object, object.GetName()+"-", c.templates[revision]); err != nil {
			return err
		}
	}
	for i := range max(len(pods)-spec.Replicas, 0) {
		if err := the.Client.CoreV1().Pods(c.ns).Delete(ctx, pods[i].Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	if at := slices.IndexFunc(pods, old); len(pods) == spec.Replicas && kept > partition && isReady(&pods[0]) {
		return the.Client.CoreV1().Pods(c.ns).Delete(ctx, pods[at].Name, metav1.DeleteOptions{})
	}
	return nil
}

// keepOrdinals is for advanced StatefulSets, all of whose pods are made and deleted at once.
func (c *workloadController) keepOrdinals(ctx context.Context, object *unstructured.Unstructured, spec *workloadSpec, pods []corev1.Pod, partition int, latest string) error {
	byName := map[string]*corev1.Pod{}
	for i := range pods {
		byName[pods[i].Name] = &pods[i]
	}
	var last *corev1.Pod // with the highest ordinal of those to update
	missing := false
	for ordinal, position := 0, 0; position < spec.Replicas; ordinal++ {
		if slices.Contains(spec.ReserveOrdinals, ordinal) {
			continue
		}
		name := fmt.Sprintf("%s-%d", object.GetName(), ordinal)
		if pod := byName[name]; pod == nil {
			missing = true
			revision := latest
			if position < partition {
				revision = c.current[object.GetUID()]
			}
			if err := createPod(ctx, object, name, c.templates[revision]); err != nil {
				return err
			}
		} else if missing = missing || !isReady(pod); position >= partition && pod.Labels[revisionHash] != latest {
			last = pod
		}
		delete(byName, name)
		position++
	}
	for name := range byName {
		if err := the.Client.CoreV1().Pods(c.ns).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	if last != nil && !missing {
		return the.Client.CoreV1().Pods(c.ns).Delete(ctx, last.Name, metav1.DeleteOptions{})
	}
	return nil
}

func ofCloneSets(value string) string {
	return "{cloneSetTemplate: {metadata: {labels: {app: web}}, spec: {template: " + onPods(value) + "}}}"
}

func ofAdvancedSets(value string) string {
	return "{advancedStatefulSetTemplate: {metadata: {labels: {app: web}}, spec: {serviceName: web, podManagementPolicy: Parallel, template: " + onPods(value) + "}}}"
}

// TestChildrenOfTheKindsOfOpenKruise: Berth knows their fields, and has them from the API server alone.
func TestChildrenOfTheKindsOfOpenKruise(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	gone := namespace(t)
	advancedSets.serve(t, true)
	cloneSets.serve(t, true)
	advancedSets.control(t, gone)
	apply(t, gone, united(2, ofAdvancedSets("one"), "", inPool("a", ""), inPool("b", "")))
	expectUnited(t, gone, "a=1 b=1")

	// The kind goes, and all of its objects with it.
	advancedSets.serve(t, false)
	patchUnited(t, gone, `{"spec":{"replicas":4}}`)
	c := expectUnitedReason(t, gone, unitedv1beta1.ReadyCondition, unitedv1beta1.ReasonKindNotServed)
	if !strings.Contains(c.Message, `the API server has no kind StatefulSet in group "apps.kruise.io"`) {
		t.Errorf("message %q", c.Message)
	}
	// The garbage collector would look for the owners of the pods only after a while.
	if err := the.Client.CoreV1().Pods(gone).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	advancedSets.serve(t, true)
	advancedSets.control(t, gone)

	t.Run("at the same time", func(t *testing.T) {
		for kind, template := range map[*customKind]func(string) string{cloneSets: ofCloneSets, advancedSets: ofAdvancedSets} {
			t.Run(kind.plural, func(t *testing.T) {
				t.Parallel()
				followOpenKruise(t, kind, template)
			})
		}
	})
	expectUnited(t, gone, "a=2 b=2")
}

// followOpenKruise takes a UnitedDeployment with children of a kind through scaling, partitions, a user's changes, and the end of a subset.
func followOpenKruise(t *testing.T, kind *customKind, template func(value string) string) {
	ns := namespace(t)
	auditChildren(t, ns, 1)
	kind.control(t, ns)
	inA, inB := inPool("a", ""), inPool("b", ", patch: {metadata: {labels: {tier: last}}}")
	apply(t, ns, united(5, template("one"), "", inA, inB))
	first := expectUnited(t, ns, "a=3 b=2")
	patchUnited(t, ns, `{"spec":{"replicas":8}}`, "scale")
	expectUnited(t, ns, "a=4 b=4")
	patchUnited(t, ns, `{"spec":{"replicas":4}}`, "scale")
	expectUnited(t, ns, "a=2 b=2")
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		if (pod.Labels["tier"] == "last") != strings.HasSuffix(pod.Spec.NodeName, "-b") {
			t.Errorf("pod %s on %s has labels %v", pod.Name, pod.Spec.NodeName, pod.Labels)
		}
	}

	partitions := func(a, b int) string {
		return fmt.Sprintf("  updateStrategy: {maxSurge: 1, manualUpdate: {partitions: {a: %d, b: %d}}}", a, b)
	}
	apply(t, ns, united(4, template("two"), partitions(0, 2), inA, inB))
	expectUpdatedPods(t, ns, "a=2 b=0")
	apply(t, ns, united(4, template("two"), partitions(0, 1), inA, inB))
	expectUpdatedPods(t, ns, "a=2 b=1")
	// More replicas, half of them of b.
	patchUnited(t, ns, `{"spec":{"replicas":6}}`, "scale")
	expectUpdatedPods(t, ns, "a=3 b=2")
	apply(t, ns, united(6, template("two"), partitions(0, 0), inA, inB))
	if ud := expectUpdated(t, ns); ud.Status.UpdatedRevision == first.Status.UpdatedRevision {
		t.Errorf("the revision is still %s", ud.Status.UpdatedRevision)
	}

	// A user's field stays; Berth's comes back. So does the child.
	patchChild(t, childIn(t, ns, "a"), `{"metadata":{"annotations":{"note":"mine"}},"spec":{"revisionHistoryLimit":3,"replicas":2}}`)
	expectUnited(t, ns, "a=3 b=3")
	if limit, _, _ := unstructured.NestedInt64(childIn(t, ns, "a").Object, "spec", "revisionHistoryLimit"); limit != 3 {
		t.Errorf("the user's field is %d", limit)
	}
	apply(t, ns, united(6, template("two"), "  updateStrategy: {maxSurge: 1}", inB))
	expectUnited(t, ns, "b=6")
}
