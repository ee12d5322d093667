package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/test/testkit"
)

func TestTree(t *testing.T) {
	made := metav1.NewTime(now().Add(-20 * time.Hour))
	meta := func(name, kind, owner string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), CreationTimestamp: made}
		if owner != "" {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}}
		}
		return m
	}
	spread := testkit.Spread(t, twoThenAny, `{observedReplicas: 4, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}]}`)
	spread.CreationTimestamp, spread.UID = made, "spread"
	objects := []client.Object{spread, &appsv1.Deployment{ObjectMeta: meta("web", "", "")}, &appsv1.ReplicaSet{ObjectMeta: meta("web-1", "Deployment", "web")},
		&appsv1.ReplicaSet{ObjectMeta: meta("web-2", "Deployment", "web")}, &corev1.Pod{ObjectMeta: meta("other", "ReplicaSet", "elsewhere")}}
	pod := func(name, owner, in, node string, ready bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(name, "ReplicaSet", owner), Spec: corev1.PodSpec{NodeName: node}}
		if in != "" {
			p.Annotations = map[string]string{"apps.kruise.io/matched-workloadspread": fmt.Sprintf(`{"name":"web","subset":%q,"uid":%q}`, in, name)}
		}
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		objects = append(objects, p)
		return p
	}
	pod("p-2", "web-1", "a", "n-1", true)
	pod("p-1", "web-1", "a", "n-2", false)
	pod("p-3", "web-1", "", "", false)
	pod("p-4", "web-2", "", "n-3", true).Labels = map[string]string{"berth.dev/subset": "b"}
	pod("p-5", "web-2", "", "n-3", true)

	var out bytes.Buffer
	if err := (&treeCommand{out: &out, output: console.AsTable}).run(t.Context(), clusterOf(t, objects...), []string{"web"}); err != nil {
		t.Fatal(err)
	}
	want := `NAME                         KEPT   QUOTA   NODE   STATE      AGE
WorkloadSpread/web                                 Ready      20h
└─ Deployment/web                                             20h
   ├─ ReplicaSet/web-1                                        20h
   │  ├─ subset a            2      2
   │  │  ├─ Pod/p-1                         n-2    Starting   20h
   │  │  └─ Pod/p-2                         n-1    Ready      20h
   │  └─ no subset
   │     └─ Pod/p-3                                Pending    20h
   └─ ReplicaSet/web-2                                        20h
      ├─ subset b            1      -
      │  └─ Pod/p-4                         n-3    Ready      20h
      └─ no subset
         └─ Pod/p-5                         n-3    Ready      20h
`
	squeeze := func(text string) string { // columns are tested with the tables
		lines := strings.Split(text, "\n")
		for i := range lines {
			lines[i] = strings.Join(strings.Fields(lines[i]), " ")
		}
		return strings.Join(lines, "\n")
	}
	if diff := cmp.Diff(squeeze(want), squeeze(out.String())); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
	out.Reset()
	var root Branch
	if err := (&treeCommand{out: &out, output: console.AsYAML}).run(t.Context(), clusterOf(t, objects...), []string{"web"}); err != nil || yaml.UnmarshalStrict(out.Bytes(), &root) != nil ||
		*root.Branches[0].Branches[0].Branches[0].Kept != 2 {
		t.Errorf("%v, printed\n%s", err, out.String())
	}
	if err := (&treeCommand{out: &out}).run(t.Context(), clusterOf(t, objects...), []string{"wbe"}); err == nil || !strings.Contains(err.Error(), `no WorkloadSpread, UnitedDeployment or FederatedReplicaSet "wbe"`) {
		t.Errorf("an unknown name: %v", err)
	}
}
