package spread

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// player changes objects at random, as users and controllers do.
type player struct {
	*fixture
	*rand.Rand
	next int
}

func (p *player) zone() string { return string(rune('a' + p.IntN(3))) }

// pick is one of the objects of a list, or nil.
func (p *player) pick(t *testing.T, list client.ObjectList, items func() []client.Object) client.Object {
	t.Helper()
	if err := p.client.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	all := items()
	if len(all) == 0 {
		return nil
	}
	return all[p.IntN(len(all))]
}

func (p *player) move(t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	pick := func() *corev1.Pod {
		pod, _ := p.pick(t, &pods, func() (all []client.Object) {
			for i := range pods.Items {
				all = append(all, &pods.Items[i])
			}
			return all
		}).(*corev1.Pod)
		return pod
	}
	switch p.IntN(12) {
	case 0, 1, 2:
		p.next++
		made := pod(fmt.Sprintf("p%d", p.next%30), fmt.Sprintf("r%d", 1+p.IntN(3)), "")
		if err := p.client.Get(t.Context(), client.ObjectKeyFromObject(made), &corev1.Pod{}); err == nil {
			return
		}
		made.UID = types.UID(fmt.Sprintf("uid-%d", p.next)) // names come back
		if p.IntN(3) == 0 {
			made.Labels["role"] = "worker"
		}
		p.create(t, made)
	case 3, 4:
		if pod := pick(); pod != nil && pod.Spec.NodeName == "" {
			pod.Spec.NodeName = "n" + fmt.Sprint(p.IntN(4))
			if p.IntN(2) == 0 {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1beta1.MatchedAnnotation, fmt.Sprintf(`{"name":"web","subset":%q,"uid":%q}`, p.zone(), pod.UID))
			}
			p.update(t, pod)
		}
	case 5:
		if pod := pick(); pod != nil {
			addCondition(pod, corev1.PodReady, corev1.ConditionTrue, "")
			p.update(t, pod)
		}
	case 6:
		if pod := pick(); pod != nil {
			pod.Status.Phase = corev1.PodFailed
			p.update(t, pod)
		}
	case 7:
		if pod := pick(); pod != nil {
			p.delete(t, pod)
		}
	case 8:
		if pod := pick(); pod != nil && pod.Spec.NodeName == "" {
			addCondition(pod, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)
			p.update(t, pod)
		}
	case 9:
		if pod := pick(); pod != nil { // adopted by another ReplicaSet, or by nobody
			setController(pod, "apps/v1", "ReplicaSet", "r2", "r2")
			if p.IntN(2) == 0 {
				pod.OwnerReferences = nil
			}
			p.update(t, pod)
		}
	case 10:
		node := &corev1.Node{}
		if err := p.client.Get(t.Context(), client.ObjectKey{Name: "n" + fmt.Sprint(p.IntN(4))}, node); err != nil {
			t.Fatal(err)
		}
		node.Labels = map[string]string{"zone": p.zone()}
		p.update(t, node)
	default:
		d := deployment(0)
		if err := p.client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			t.Fatal(err)
		}
		d.Spec.Replicas = ptr.To(p.Int32N(12))
		p.update(t, d)
	}
}

// TestAnAccountIsWhatARecountComesTo: after any history, seen event by event and looked at now and then.
func TestAnAccountIsWhatARecountComesTo(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			nearer := makeSpread(t, threeThenAny+"\ntargetFilter: {selector: {matchLabels: {role: worker}}}")
			nearer.Name, nearer.UID, nearer.Spec.TargetReference.Kind, nearer.Spec.TargetReference.Name = "nearer", "nearer", "ReplicaSet", "r1"
			objects := []client.Object{makeSpread(t, byZone), deployment(5), replicaSet("r1"), replicaSet("r2")} // r3 belongs to nobody
			if seed%2 == 0 {
				objects = append(objects, nearer)
			}
			for i := range 4 {
				objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"zone": string(rune('a' + i%3))}}})
			}
			f := newFixture(t, objects...)
			p := &player{fixture: f, Rand: rand.New(rand.NewPCG(seed, 1))}
			for range 30 {
				for range 1 + p.IntN(6) {
					p.move(t)
				}
				kept, costs := f.settle(t).DeepCopy(), f.costs(t)
				if p.IntN(4) > 0 {
					continue // what is kept up has to last
				}
				f.changes.ofEverything(client.ObjectKey{Namespace: "default", Name: "web"})
				recounted := f.settle(t).DeepCopy()
				if diff := cmp.Diff(recounted, kept); diff != "" {
					t.Fatalf("status (-recount +account):\n%s", diff)
				}
				if diff := cmp.Diff(f.costs(t), costs); diff != "" {
					t.Fatalf("costs (-recount +account):\n%s", diff)
				}
			}
			f.clock.SetTime(f.clock.Now().Add(2 * recountInterval))
			f.settle(t)
			if testutil.ToFloat64(f.corrections) > 0 {
				t.Errorf("%v recounts corrected an account", testutil.ToFloat64(f.corrections))
			}
		})
	}
}

func TestARecountCorrectsAnAccount(t *testing.T) {
	f := newFixture(t, makeSpread(t, threeThenAny), deployment(2), replicaSet("r1"), pod("p1", "r1", "a"))
	if got := f.settle(t).Summary; got != "a 1/3, b 0/-" {
		t.Fatalf("summary %q", got)
	}
	// News that never arrive.
	if err := f.client.Create(t.Context(), pod("p2", "r1", "a")); err != nil {
		t.Fatal(err)
	}
	if got := f.settle(t).Summary; got != "a 1/3, b 0/-" {
		t.Fatalf("summary %q: it was counted without being told", got)
	}
	f.clock.SetTime(f.clock.Now().Add(2 * recountInterval))
	if got := f.settle(t).Summary; got != "a 2/3, b 0/-" || testutil.ToFloat64(f.corrections) != 1 {
		t.Errorf("summary %q after %v corrections", got, testutil.ToFloat64(f.corrections))
	}
}

func TestWhatFailsHalfWayIsCountedAnew(t *testing.T) {
	f := newFixture(t, makeSpread(t, threeThenAny), deployment(2), replicaSet("r1"))
	f.settle(t)
	f.create(t, pod("p1", "r1", "a"))
	f.refuse = fmt.Errorf("the API server is down")
	f.clock.SetTime(f.clock.Now().Add(frame.StatusInterval))
	if _, err := f.reconcileWeb(t); err == nil {
		t.Fatal("no error")
	}
	f.refuse = nil
	if got := f.settle(t).Summary; got != "a 1/3, b 0/-" {
		t.Errorf("summary %q", got)
	}
}
