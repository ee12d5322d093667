package descheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/test/harness"
)

func binDir() string { return harness.BinDir() }

// kubeconfigOf returns a kubeconfig for an API server. The API server need not exist.
func kubeconfigOf(t *testing.T, host string) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: host}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{}
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	file.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Case 28: for random pods on random nodes, the filters give the same verdict as the scheduler.
func TestTheFiltersSayWhatTheSchedulerSays(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	r := rand.New(rand.NewPCG(20, 28))
	var nodes []*corev1.Node
	for i := range 8 {
		var taints []corev1.Taint
		if i%4 == 3 {
			taints = append(taints, corev1.Taint{Key: "spot", Effect: corev1.TaintEffectNoSchedule})
		}
		nodes = append(nodes, sandbox.NewNode(fmt.Sprintf("%s-parity-%d", ns, i), fmt.Sprintf("zone-%d", i%3),
			map[string]string{"parity": ns, "tier": fmt.Sprint(i % 2)}, taints, sandbox.Allocatable(quantity("4"), quantity("8Gi"))))
	}
	t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	if err := the.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(the.Client, 0)
	filters, err := fit.NewFilters(t.Context(), the.Client, factory, podstate.DefaultNotices())
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())

	verdicts, mismatches := map[bool]int{}, 0
	// This many pods take about two thirds of the room. So there are always some pods without room and some with room.
	const mostRunning = 20
	var running []string
	for i := range *parityPods {
		pod := randomPod(r, ns, i)
		rooms, err := take(t, filters)
		if err != nil {
			t.Fatal(err)
		}
		_, verdict, why := rooms.Place(t.Context(), pod, nil, func(*corev1.Node) bool { return true })
		if verdict == fit.Unknown {
			t.Fatalf("nothing is known of pod %d: %v", i, why)
		}
		if _, err := the.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		scheduled := false
		waitFor(t, "the scheduler's verdict", func(ctx context.Context) (string, error) {
			got, err := the.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil || len(got.Status.Conditions) == 0 && got.Spec.NodeName == "" {
				return "none yet", err
			}
			scheduled = got.Spec.NodeName != ""
			return "", nil
		})
		verdicts[scheduled]++
		if fits := verdict == fit.Fits; fits != scheduled {
			mismatches++
			t.Errorf("pod %d: the filters say %t (%v), the scheduler %t", i, fits, why, scheduled)
		}
		leaves := pod.Name
		if scheduled {
			running = append(running, pod.Name)
			if len(running) <= mostRunning {
				continue
			}
			at := r.IntN(len(running))
			leaves = running[at]
			running = slices.Delete(running, at, at+1)
		}
		if err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), leaves, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the pod to be gone", func(ctx context.Context) (string, error) {
			pods, err := the.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + leaves})
			if err != nil || len(pods.Items) == 0 {
				return "", err
			}
			return "it is there", nil
		})
	}
	t.Logf("%d of %d verdicts differ; %d pods were scheduled, %d were not", mismatches, *parityPods, verdicts[true], verdicts[false])
	if least := *parityPods / 10; verdicts[true] < least || verdicts[false] < least {
		t.Errorf("the pods are not random enough: %v", verdicts)
	}
}

func take(t *testing.T, filters *fit.Filters) (*fit.Rooms, error) {
	t.Helper()
	pods, err := the.Client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodes, err := the.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var allPods []*corev1.Pod
	for i := range pods.Items {
		allPods = append(allPods, &pods.Items[i])
	}
	var allNodes []*corev1.Node
	for i := range nodes.Items {
		allNodes = append(allNodes, &nodes.Items[i])
	}
	return filters.Take(allPods, allNodes)
}

func randomPod(r *rand.Rand, ns string, i int) *corev1.Pod {
	app := fmt.Sprintf("app-%d", r.IntN(4))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("parity-%d", i), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			SchedulerName:                 corev1.DefaultSchedulerName,
			TerminationGracePeriodSeconds: new(int64),
			NodeSelector:                  map[string]string{"parity": ns},
			Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: quantity(fmt.Sprintf("%dm", 200+r.IntN(1800)))}}}},
		},
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	topology := []string{corev1.LabelHostname, corev1.LabelTopologyZone}[r.IntN(2)]
	if r.IntN(3) == 0 {
		pod.Spec.NodeSelector["tier"] = fmt.Sprint(r.IntN(2))
	}
	if r.IntN(3) == 0 {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}
	}
	if r.IntN(5) == 0 {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	}
	switch r.IntN(5) {
	case 0:
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: topology, LabelSelector: selector}}}}
	case 1:
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: topology, LabelSelector: selector}}}}
	case 2:
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: topology, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector}}
	}
	return pod
}
